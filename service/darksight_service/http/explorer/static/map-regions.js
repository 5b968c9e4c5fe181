// Regions: draw, preview, save as shadow, enforce, remove, carry over from another version.

import { address, getJson, postJson } from "./api.js";
import { DAY_MS, when } from "./figures.js";
import { zoomTo } from "./map-figure.js";
import { element, notify } from "./notice.js";

// Corners of a drawn polygon that are closer to a line than this share of the view are dropped.
const COARSE = 0.003;
const ENFORCED = "REGION_MODE_ENFORCE";

/** The panel of regions; `load()` loads and draws them. */
export function openRegions(page, scene, plot, redraw) {
  const panel = document.getElementById("regions");
  const { version } = page;
  const path = `/v1/models/${encodeURIComponent(page.model)}/regions`;
  const pathOf = (region) => `${path}/${encodeURIComponent(region.name)}`;
  const mayChange = page.may("admin");
  let others = [];
  let isListening = false;

  async function load() {
    const regions = (await getJson(path)).regions.map(fromMessage);
    scene.regions = regions.filter((each) => each.version === version);
    const names = new Set(scene.regions.map((each) => each.name));
    others = regions.filter((each) => each.version !== version && !each.is_from_bundle && !names.has(each.name));
    show();
    await redraw();
  }

  function act(work) {
    return page.guard(async () => {
      await work();
      await load();
    });
  }

  function startDrawing() {
    if (!isListening) plot.on("plotly_relayout", onDrawn);
    isListening = true;
    scene.isDrawing = true;
    scene.draft = null;
    notify("Draw the border of the region on the map with the mouse button held down.");
    show();
    redraw();
  }

  function stop() {
    Object.assign(scene, { isDrawing: false, draft: null });
    show();
    redraw();
  }

  function onDrawn(changed) {
    const drawn = (changed.shapes || []).at(-1);
    if (!scene.isDrawing || !drawn || !drawn.path) return;
    scene.isDrawing = false;
    const width = plot._fullLayout.xaxis.range[1] - plot._fullLayout.xaxis.range[0];
    setDraft({ polygon: simplified(corners(drawn.path), COARSE * width), name: "", expires_ms: 0 });
  }

  function setDraft(draft) {
    scene.draft = draft;
    show();
    redraw();
    const told = document.getElementById("draft-preview");
    if (draft.polygon.length >= 3) page.guard(async () => showPreview(told, await preview({ polygon: cornersOf(draft.polygon) })));
    else told.textContent = "A region needs at least three corners.";
  }

  const preview = (what) => postJson(`${path}/preview`, { version, ...what });

  function show() {
    const parts = [];
    if (scene.draft) parts.push(form());
    else if (scene.isDrawing) parts.push(element("div", { class: "row" }, "Drawing…", element("button", { onclick: stop }, "Cancel")));
    else {
      parts.push(element("div", { class: "row" },
        element("button", { id: "draw-region", onclick: startDrawing }, "Draw a region"),
        element("button", { class: "quiet", onclick: () => setDraft({ polygon: middle(), name: "", expires_ms: 0 }) }, "Type corners")));
    }
    if (!scene.regions.length && !scene.draft) {
      parts.push(element("p", { class: "hint" }, "A region is a part of the map where the gate rejects predictions. Draw one where errors gather, check its preview, and save it. It starts as a shadow, which changes no decision."));
    }
    parts.push(...scene.regions.map(item));
    if (others.length && mayChange) parts.push(element("h3", {}, "Regions of other versions"), ...others.map(other));
    panel.replaceChildren(...parts);
  }

  function middle() {
    const [x, y] = ["xaxis", "yaxis"].map((name) => plot._fullLayout[name].range.map(Number));
    const part = (range, share) => Number((range[0] + share * (range[1] - range[0])).toPrecision(5));
    return [[0.4, 0.4], [0.6, 0.4], [0.6, 0.6], [0.4, 0.6]].map(([u, v]) => [part(x, u), part(y, v)]);
  }

  function form() {
    const { draft } = scene;
    const name = element("input", { id: "region-name", type: "text", maxlength: 100, value: draft.name, placeholder: "for example: blurred 3s" });
    const until = element("select", { id: "region-expires" },
      ...[["never", 0], ["in 1 day", 1], ["in 7 days", 7], ["in 30 days", 30]].map(([text, days]) => element("option", { value: days }, text)));
    const box = element("textarea", { id: "region-corners", spellcheck: "false" });
    box.value = draft.polygon.map((corner) => corner.map((value) => Number(value.toPrecision(6))).join(", ")).join("\n");
    box.addEventListener("change", () => setDraft({ ...scene.draft, name: name.value, polygon: typed(box.value) }));
    const save = () => act(async () => {
      const days = Number(until.value);
      const expires = days ? Date.now() + days * DAY_MS : scene.draft.expires_ms;
      const expiry = expires ? { expires_at: new Date(expires).toISOString() } : {};
      await postJson(path, { version, name: name.value.trim(), polygon: cornersOf(scene.draft.polygon), ...expiry });
      scene.draft = null;
      notify(`Saved ${name.value.trim()} as a shadow, which changes no decision.`, "done");
    });
    return element("div", { class: "draft" },
      element("div", { class: "field" }, element("label", { for: "region-name" }, "Name"), name),
      element("div", { class: "field" }, element("label", { for: "region-expires" }, "Expires"), until),
      element("details", {}, element("summary", {}, `${draft.polygon.length} corners`), box),
      element("div", { id: "draft-preview", role: "status" }, "Loading the preview…"),
      element("div", { class: "row" },
        element("button", { class: "primary", id: "save-region", onclick: save, disabled: !mayChange, title: mayChange ? null : "Needs a token with scope admin" }, "Save as shadow"),
        element("button", { onclick: stop }, "Discard")));
  }

  function item(region) {
    const told = element("div", { role: "status" });
    const ends = region.expires_ms ? `, expires ${when(region.expires_ms)}` : "";
    const buttons = [
      element("button", { onclick: () => page.guard(async () => { zoomTo(plot, region.polygon); showPreview(told, await preview({ name: region.name })); }) }, "Preview"),
    ];
    if (mayChange && !region.is_from_bundle) {
      buttons.push(
        element("button", { onclick: () => act(() => postJson(`${pathOf(region)}/mode`, { version, mode: region.is_enforced ? "REGION_MODE_SHADOW" : ENFORCED }, "PUT")) }, region.is_enforced ? "Make shadow" : "Enforce"),
        element("button", { class: "danger", onclick: () => act(() => postJson(address(pathOf(region), { version }), null, "DELETE")) }, "Remove"));
    }
    const who = region.is_from_bundle ? "from the bundle" : region.author ? `by ${region.author}` : "";
    return element("div", { class: "region" },
      element("div", { class: "row" }, element("strong", {}, region.name),
        element("span", { class: `badge ${region.is_enforced ? "enforce" : ""}` }, region.is_enforced ? "enforced" : "shadow")),
      element("div", { class: "hint" }, `${who}${ends}`),
      element("div", { class: "row" }, ...buttons), told);
  }

  function other(region) {
    const carry = () => page.guard(async () => {
      const found = await postJson(`${path}/carry-over`, { name: region.name, version: region.version, to_version: version });
      const { polygon, expires_ms } = fromMessage(found.region);
      setDraft({ polygon, name: region.name, expires_ms });
      zoomTo(plot, polygon);
      notify(found.is_same_map ? "Both versions have the same map, so the region is the same." :
        `Placed by ${Number(found.stored_rows) + Number(found.reference_rows)} rows that were inside: the new polygon contains ${found.rows_inside} of them, and ${found.other_rows_inside} of ${found.other_rows} other rows. Save it if that is right.`);
    });
    return element("div", { class: "region" }, element("div", { class: "row" },
      element("span", {}, `${region.name} on ${region.version.slice(0, 12)}`), element("button", { onclick: carry }, "Carry over")));
  }

  return { load };
}

/** A region as the map draws it, of a message: whole numbers arrive as text, corners as objects. */
function fromMessage(region) {
  return {
    ...region,
    polygon: region.polygon.map(({ x, y }) => [x, y]),
    is_enforced: region.mode === ENFORCED,
    expires_ms: region.expires_at ? Date.parse(region.expires_at) : 0,
  };
}

const cornersOf = (polygon) => polygon.map(([x, y]) => ({ x, y }));

function showPreview(container, found) {
  const shown = (number) => Number(number).toLocaleString();
  const share = ({ rows, correct, low, high }) =>
    Number(rows) ? `${((100 * correct) / rows).toFixed(1)}% (${(100 * low).toFixed(0)}–${(100 * high).toFixed(0)}%), ${correct} of ${rows}` : "no labels";
  const rejected = Number(found.accepted) ? ` = ${((100 * found.inside_accepted) / found.accepted).toFixed(2)}% of accepted traffic` : "";
  const facts = [
    ["stored points inside", `${shown(found.inside)} of ${shown(found.examined)}`],
    ["would be rejected", `${shown(found.inside_accepted)}${rejected}`],
    ["accuracy inside", share(found.accuracy)],
    ["accuracy since it was saved", share(found.new_accuracy)],
    ["reference points inside", `${shown(found.reference_inside)} of ${shown(found.reference_points)}`],
    ["accuracy of reference points", share(found.reference_accuracy)],
  ];
  container.replaceChildren(element("dl", { class: "facts" }, ...facts.flatMap(([key, value]) => [element("dt", {}, key), element("dd", {}, value)])));
}

function corners(path) {
  return [...path.matchAll(/[ML]([^MLZ]+)/g)].map((found) => found[1].split(",").map(Number));
}

function typed(text) {
  return text.split("\n").map((line) => line.split(/[,;\s]+/).filter(Boolean).map(Number))
    .filter((corner) => corner.length === 2 && corner.every(Number.isFinite));
}

/** Douglas-Peucker: drops corners that are within `reach` of the simplified line. */
function simplified(polygon, reach) {
  if (polygon.length <= 4) return polygon;
  const between = (start, end) => {
    const [ax, ay] = polygon[start];
    const [bx, by] = polygon[end];
    const length = Math.hypot(bx - ax, by - ay);
    let far = 0;
    let which = -1;
    for (let i = start + 1; i < end; i += 1) {
      const [x, y] = polygon[i];
      const away = length ? Math.abs((bx - ax) * (ay - y) - (ax - x) * (by - ay)) / length : Math.hypot(x - ax, y - ay);
      if (away > far) [far, which] = [away, i];
    }
    return far > reach ? [...between(start, which), ...between(which, end)] : [polygon[start]];
  };
  return between(0, polygon.length - 1).concat([polygon.at(-1)]);
}
