// The map page: state and loading. map-figure.js draws, map-regions.js edits regions.

import { getColumns, getJson } from "./api.js";
import { asInput, fromInput, later } from "./figures.js";
import { clearDetail, showDetail } from "./map-detail.js";
import { drawMap, filterRows, lookAt, renameCentres, viewOf } from "./map-figure.js";
import { showLegend } from "./map-legend.js";
import { openRegions } from "./map-regions.js";
import { countTags, listTagKeys, renumber, showTagLegend, tagKey } from "./map-tags.js";
import { notify, openControls } from "./notice.js";
import { SCHEME } from "./palette.js";
import { loadPlotly } from "./plot.js";
import { openPage } from "./shell.js";
import { readState, writeState } from "./state.js";

const DEFAULTS = {
  colour: "predicted", contours: "student", window: "all", since: 0, until: 0, decision: "", tags: "", amount: "auto",
  reference: true, live: true, follow: false, classes: [], hidden: [], view: "", point: "",
};
// Maximum number of points per request with probabilities; without them a request returns all points that are drawn.
const CALL = 10_000;
// Maximum number of points that are drawn; of more points the density is shown, unless points are chosen or followed.
const MOST = 100_000;
const FOLLOW_MS = 2_000;
const SPANS = { "1h": 3_600_000, "24h": 86_400_000, "7d": 604_800_000 };

const page = await openPage();
const at = { model: page.model, version: page.version };
const plot = document.getElementById("plot");
const field = (id) => document.getElementById(id);
let state = readState(DEFAULTS);
let loading = new AbortController();

const scene = { map: null, reference: null, live: null, isShaded: false, total: 0, contours: null, regions: [], draft: null, state };

/** Load everything that the state needs in parallel, and draw it as it arrives. */
async function refresh() {
  loading.abort();
  loading = new AbortController();
  Object.assign(scene, { live: null, tagSlots: null, tagCounts: null, state });
  const { signal } = loading;
  fillControls();
  showLegend(scene, { toggle: setHidden, only: setClasses });
  await Promise.all([loadLive(signal), loadFitted(signal)]);
}

/** Load what does not change with the traffic. */
async function loadFitted(signal) {
  const classes = state.classes.join(",");
  const [reference, contours] = await Promise.all([
    getColumns("/api/map/reference", { ...at, classes }, signal),
    state.contours === "none" ? null : getColumns("/api/map/density", { ...at, layer: state.contours, classes }, signal),
  ]);
  Object.assign(scene, { reference, contours });
  await redraw();
}

function query() {
  const now = Date.now();
  const since = state.window === "custom" ? state.since : SPANS[state.window] ? now - SPANS[state.window] : 0;
  return {
    ...at, classes: state.classes.join(","), decision: state.decision, tags: state.tags, since_ms: since,
    until_ms: state.window === "custom" ? state.until : "", entropy: state.colour === "entropy" ? 1 : "",
    tag_key: tagKey(state),
  };
}

/** Maximum number of points to draw. */
const most = () => Math.min(Number(state.amount) || MOST, MOST);

async function loadLive(signal) {
  if (!state.live) {
    Object.assign(scene, { live: null, isShaded: false, total: 0 });
    return tell();
  }
  let isShaded = state.amount === "density";
  const atOnce = state.colour === "entropy" || state.classes.length ? CALL : MOST;
  // The total decides between points and density, unless a number of points was chosen.
  const limit = Number(state.amount) ? Math.min(atOnce, most()) : CALL;
  let first = await getColumns("/api/map/points", { ...query(), limit, count: 1, sample: isShaded ? 1 : "" }, signal);
  const total = Math.max(first.meta.total, first.x.length);
  if (state.amount === "auto" && !state.follow && total > MOST) {
    isShaded = true;
    first = await getColumns("/api/map/points", { ...query(), sample: 1 }, signal);
  }
  Object.assign(scene, { live: first, isShaded, total });
  const drawn = redraw().then(() => performance.mark("darksight:first"));
  const isMore = !isShaded && first.x.length === limit && limit < most();
  await Promise.all([drawn, isMore ? loadRest(atOnce, signal) : null]);
  performance.mark("darksight:all");
}

/** Load the older points. Drawing takes longer than loading, so all are drawn at once. */
async function loadRest(atOnce, signal) {
  for (let isMore = true; isMore && scene.live.x.length < most(); ) {
    const limit = Math.min(atOnce, most() - scene.live.x.length);
    const before = idOf(scene.live, scene.live.x.length - 1);
    const more = await getColumns("/api/map/points", { ...query(), limit, before }, signal);
    scene.live = joined(scene.live, more);
    isMore = more.x.length === limit;
  }
  await redraw();
}

async function followLive() {
  if (!state.follow || !state.live || document.hidden || scene.live === null || scene.isShaded) return;
  const after = scene.live.x.length ? idOf(scene.live, 0) : "";
  const { signal } = loading;
  const found = await getColumns("/api/map/points", { ...query(), after, count: 1 }, signal);
  if (signal.aborted || found.x.length === 0) return;
  scene.total = found.meta.total;
  scene.live = joined(found, scene.live, most());
  await redraw();
}

let drawing = null;
let isStale = false;

/** Draw the scene; changes that arrive during a draw are drawn together after it. */
async function redraw() {
  isStale = true;
  drawing ??= drawStale().finally(() => { drawing = null; });
  await drawing;
}

async function drawStale() {
  await loadPlotly();
  while (isStale) {
    // Let pending responses arrive first.
    await new Promise((resolve) => setTimeout(resolve));
    isStale = false;
    scene.state = state;
    if (scene.live && scene.live.tag && tagKey(state)) countTags(scene, filterRows(scene, "live"));
    showTagLegend(scene);
    await drawMap(plot, scene);
    tell();
  }
}

function tell() {
  if (!scene.reference || (state.live && scene.live === null)) {
    field("count").textContent = "Loading stored points…";
    return;
  }
  const shown = scene.live ? scene.live.x.length : 0;
  const stored = state.live
    ? scene.isShaded && shown < scene.total
      ? `density of a sample: ${shown.toLocaleString()} of ${scene.total.toLocaleString()} points`
      : `${shown.toLocaleString()} of ${scene.total.toLocaleString()} points`
    : "stored points hidden";
  const reference = state.reference ? `${scene.reference.x.length.toLocaleString()} reference points` : "reference hidden";
  let hint = "";
  if (state.live && shown === 0) {
    hint = state.window !== "all" || state.decision || state.tags || state.classes.length
      ? " No stored point matches: change time, decision, tags or classes."
      : ` No points are stored yet: send predictions with Client.score("${page.model}", probs).`;
  }
  field("count").textContent = `${stored}, ${reference}.${hint}`;
}

function change(values, options = {}) {
  state = { ...state, ...values };
  writeState(state, DEFAULTS, options);
  return page.guard(options.isLight ? async () => { fillControls(); await redraw(); } : refresh);
}

const setHidden = (hidden) => change({ hidden }, { isLight: true, replace: true });
const setClasses = (classes) => change({ classes, hidden: [], view: "" });

function fillControls() {
  listTagKeys(field("colour"), scene.map.tag_keys, tagKey(state));
  for (const name of ["colour", "contours", "window", "decision", "tags", "amount"]) field(name).value = state[name];
  field("custom-window").hidden = state.window !== "custom";
  for (const name of ["since", "until"]) field(name).value = state[name] ? asInput(state[name]) : "";
  field("show-reference").checked = state.reference;
  field("show-live").checked = state.live;
  field("follow").setAttribute("aria-pressed", String(state.follow));
}

function bind() {
  // Entropy and tags are loaded when they are chosen.
  const isLoaded = (colour) => colour !== "entropy" && !tagKey({ colour });
  const isLight = (name) => name === "colour" && isLoaded(field("colour").value) && isLoaded(state.colour);
  for (const name of ["colour", "contours", "decision", "tags", "amount"]) {
    field(name).addEventListener("change", () => change({ [name]: field(name).value.trim() }, { isLight: isLight(name) }));
  }
  field("window").addEventListener("change", () => {
    const window = field("window").value;
    change(window === "custom" ? { window, since: state.since || Date.now() - SPANS["24h"], until: state.until || Date.now() } : { window, since: 0, until: 0 });
  });
  for (const name of ["since", "until"]) {
    field(name).addEventListener("change", () => change({ [name]: fromInput(field(name).value) }));
  }
  field("show-reference").addEventListener("change", () => change({ reference: field("show-reference").checked }, { isLight: true }));
  field("show-live").addEventListener("change", () => change({ live: field("show-live").checked }));
  field("follow").addEventListener("click", () => {
    // New points can be followed, a density cannot.
    const amount = state.amount === "density" ? "auto" : state.amount;
    change({ follow: !state.follow, amount }, { isLight: !scene.isShaded && scene.total <= MOST });
  });
  window.addEventListener("popstate", () => {
    state = readState(DEFAULTS);
    page.guard(refresh);
  });
  plot.addEventListener("keydown", onKey);
  clearDetail();
  SCHEME.addEventListener("change", redraw);
  const rename = later(() => renameCentres(plot, scene), 100);
  redraw().then(() => {
    plot.on("plotly_relayout", (changed) => {
      const view = viewOf(plot, changed);
      if (view === null) return;
      state = { ...state, view };
      writeState(state, DEFAULTS, { replace: true });
      rename();
    });
    // Text below the map may change its height.
    new ResizeObserver(later(() => window.Plotly.Plots.resize(plot), 100)).observe(plot);
    plot.on("plotly_hover", (event) => select(event.points[0], false));
    plot.on("plotly_click", (event) => select(event.points[0], true));
  });
}

let waiting = 0;

function select(found, isPinned) {
  const rows = found.data.meta && found.data.meta.rows;
  if (!rows) return;
  clearTimeout(waiting);
  const { source } = found.data.meta;
  const row = rows[found.pointNumber];
  // Load a point only when the pointer rests on it.
  waiting = setTimeout(() => showRow(source, row, isPinned), isPinned ? 0 : 60);
}

function showRow(source, row, isPinned) {
  page.guard(() => showDetail(scene, at, source, row));
  if (isPinned && source === "live") {
    state = { ...state, point: idOf(scene.live, row) };
    writeState(state, DEFAULTS, { replace: true });
  }
}

async function selectById(id) {
  await page.guard(() => showDetail(scene, at, "stored", id));
}

let walked = -1;

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const moves = { ArrowLeft: [-0.15, 0], ArrowRight: [0.15, 0], ArrowUp: [0, 0.15], ArrowDown: [0, -0.15] };
  if (moves[event.key]) lookAt(plot, { by: moves[event.key] });
  else if (event.key === "+" || event.key === "=") lookAt(plot, { zoom: 0.8 });
  else if (event.key === "-") lookAt(plot, { zoom: 1.25 });
  else if (event.key === "0") change({ view: "" }, { isLight: true });
  else if ((event.key === "n" || event.key === "p") && scene.live) {
    const rows = filterRows(scene, "live");
    if (rows.length === 0) return notify("No stored point is shown.");
    walked = Math.max(0, Math.min(rows.length - 1, walked + (event.key === "n" ? 1 : -1)));
    showRow("live", rows[walked], true);
  } else return undefined;
  event.preventDefault();
  return undefined;
}

function idOf(columns, row) {
  return Array.from(columns.id.subarray(16 * row, 16 * row + 16), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function joined(first, second, most = Infinity) {
  const made = { meta: { ...first.meta } };
  // The numbers of a tag are those of one response.
  if (first.tag) made.meta.tag_values = [...first.meta.tag_values];
  for (const [name, array] of Object.entries(first)) {
    if (name === "meta" || !second[name]) continue;
    const whole = new array.constructor(array.length + second[name].length);
    whole.set(array);
    whole.set(name === "tag" ? renumber(made.meta.tag_values, second) : second[name], array.length);
    made[name] = whole.subarray(0, Math.min(whole.length, most * (name === "id" ? 16 : 1)));
  }
  return made;
}

await page.guard(async () => {
  scene.map = await getJson("/api/map", at);
  const regions = openRegions(page, scene, plot, redraw);
  bind();
  openControls();
  await Promise.all([refresh(), regions.load()]);
  if (state.point) selectById(state.point);
});

// One request after the other, so that slow responses do not pile up.
(async function follow() {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, FOLLOW_MS));
    await page.guard(followLive);
  }
})();
