// Details of a point, with its probabilities as bars.

import { getJson } from "./api.js";
import { setText, tagBadges, when } from "./figures.js";
import { element, showEmpty } from "./notice.js";
import { classColour } from "./palette.js";
import { referenceOf } from "./reference.js";

const BARS = 10;
const fetched = new Map();
let latest = 0;

export function clearDetail() {
  showEmpty(document.getElementById("detail"), "No point selected", "Point at one on the map, or use the keys n and p.");
}

/** Show a row of `source`, or the stored point of that id. */
export async function showDetail(scene, at, source, row) {
  latest += 1;
  const mine = latest;
  const found = source === "reference" ? referencePoint(scene, row) : await storedPoint(scene, at, source, row);
  // A late response must not replace a newer one.
  if (mine === latest) show(scene.map, found, scene.state.classes.map(Number));
}

function referencePoint({ reference, map }, row) {
  const kept = reference.meta.top;
  const probs = new Array(map.class_names.length).fill(null);
  for (let i = row * kept; i < (row + 1) * kept; i += 1) probs[reference.top_classes[i]] = reference.top_probs[i];
  return {
    title: "Reference point of the fit", predicted: reference.predicted[row], label: reference.label[row],
    x: reference.x[row], y: reference.y[row], probs,
  };
}

async function storedPoint({ live }, at, source, row) {
  const id = source === "stored" ? row : hex(live.id.subarray(16 * row, 16 * row + 16));
  if (!fetched.has(id)) {
    if (fetched.size > 500) fetched.clear();
    fetched.set(id, await getJson("/api/map/point", { ...at, id }));
  }
  return { title: "Stored prediction", ...fetched.get(id) };
}

function hex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function show(map, point, classes) {
  const name = (number) => (number >= 0 ? map.class_names[number] : "unknown");
  const facts = [["predicted", name(point.predicted)], ["true class", name(point.label)]];
  if (point.decision) facts.push(["decision", point.reason === "NONE" ? "accept" : `${point.decision.toLowerCase()}: ${point.reason.toLowerCase().replace("_", " ")}`]);
  if (point.set_size) facts.push(["prediction set", setText(point, name)]);
  for (const [key, title] of Object.entries(map.labels)) {
    if (point[key]) facts.push([title, Number.isInteger(point[key]) ? point[key] : point[key].toPrecision(4)]);
  }
  facts.push(["coordinates", `${Number(point.x).toFixed(2)}, ${Number(point.y).toFixed(2)}`]);
  if (point.received_ms) facts.push(["received", when(point.received_ms)]);
  if (point.prediction_id) facts.push(["id", point.prediction_id]);
  const badges = tagBadges(point.tags);
  if (badges.length) facts.push(["tags", element("span", {}, ...badges)]);
  if (point.trace_id) facts.push(["trace", point.trace_id]);
  const list = element("dl", { class: "facts" }, ...facts.flatMap(([key, value]) => [element("dt", {}, key), element("dd", {}, value)]));
  const mark = point.label >= 0 ? (point.label === point.predicted ? "right" : "wrong") : null;
  document.getElementById("detail").replaceChildren(
    element("p", { class: "row" }, element("strong", {}, point.title), mark && element("span", { class: `badge ${mark}` }, mark)),
    point.reference ? referenceOf(map.model, point) : "",
    list,
    bars(map, point.probs, classes),
  );
}

function bars(map, probs, classes) {
  let known = (probs || []).map((value, number) => ({ value, number })).filter(({ value }) => value !== null);
  if (classes.length) known = known.filter(({ number }) => classes.includes(number));
  if (known.length === 0) return element("p", { class: "hint" }, "No probabilities are stored for this row.");
  const sum = classes.length ? known.reduce((total, { value }) => total + value, 0) || 1 : 1;
  const shown = known.sort((a, b) => b.value - a.value).slice(0, BARS);
  const container = element("div", { class: "bars", role: "list", "aria-label": "Probabilities" });
  for (const { value, number } of shown) {
    const share = value / sum;
    const fill = element("div", { class: "fill" });
    fill.style.width = `${(100 * share).toFixed(1)}%`;
    fill.style.background = classColour(number);
    container.append(
      element("span", { class: "name", role: "listitem", "aria-label": `${map.class_names[number]} ${(100 * share).toFixed(1)} %` }, map.class_names[number]),
      element("span", { class: "track", "aria-hidden": "true" }, fill),
      element("span", { class: "value", "aria-hidden": "true" }, `${(100 * share).toFixed(1)}%`),
    );
  }
  return container;
}
