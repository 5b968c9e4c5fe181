// The drift page, card of segments: which values of tags changed, and which of them explains it.

import { count, fixed, percent, table, when } from "./figures.js";
import { element } from "./notice.js";

const at = (id) => document.getElementById(id);

function accuracy(value, low, high) {
  return value === null ? "–" : `${percent(value)} (${percent(low)} to ${percent(high)})`;
}

function row(found, query) {
  const state = found.is_changed ? `changed, ${count(found.since_rows)} rows ago` : found.is_unlike ? "always unlike the rest" : "";
  return {
    mark: found.is_changed ? "moved" : null,
    cells: [
      element("a", { href: `/map?${query}&tags=${encodeURIComponent(`${found.key}=${found.value}`)}` }, `${found.key}=${found.value}`), state, fixed(found.log_evidence, 1), count(found.tested), count(found.points),
      found.outliers === null ? "–" : percent(found.outliers), found.accepted === null ? "–" : percent(found.accepted),
      found.classes.map(([name, share]) => `${name} ${percent(share, 0)}`).join(", "),
      accuracy(found.estimate, found.estimate_low, found.estimate_high),
      found.labels ? `${accuracy(found.accuracy, found.accuracy_low, found.accuracy_high)}, ${count(found.labels)} labels` : "–",
    ],
  };
}

function look(found, query) {
  const points = found.points.map((point) => element("li", {}, element("a", { href: `/points?${query}&name=${encodeURIComponent(point.prediction_id)}` }, point.prediction_id), ` p ${fixed(point.p_value, 4)}, ${when(point.received_ms)}`));
  const tags = Object.entries(found.tags).map((pair) => pair.join("=")).join(", ");
  const all = element("a", { href: `/points?${query}&tags=${encodeURIComponent(tags)}` }, "all of its points");
  return [element("h3", {}, `Most unusual rows of ${found.text}`), element("ul", {}, ...points, element("li", {}, all))];
}

/** Show the answer of /api/drift/segments; `query` names the model for links to other pages. */
export function showSegments(found, query) {
  if (!found.total) return;
  const verdict = at("segment-verdict");
  verdict.className = `verdict ${found.found ? "bad" : "good"}`;
  const named = found.explanation.join("; and ");
  verdict.replaceChildren(...(found.found
    ? [element("b", {}, named ? `Explained by ${named}` : "Segments have changed"), `: ${count(found.found)} of ${count(found.total)} segments are unlike their own calibration rows or earlier rows.`]
    : [element("b", {}, "No segment has changed"), `, of ${count(found.total)} that are tested.`]));
  const header = ["segment", "found", "evidence", "rows tested", "points", "outliers", "accepted", "predicted", "estimated accuracy", "accuracy of accepted rows"];
  at("segments").replaceChildren(table(header, found.segments.map((each) => row(each, query)), { numbers: [2, 3, 4, 5, 6] }));
  at("segment-look").replaceChildren(...found.look.flatMap((each) => look(each, query)));
  const hours = found.minutes >= 120 ? `${Math.round(found.minutes / 60)} hours` : `${count(found.minutes)} minutes`;
  at("segment-hint").textContent = `At most ${percent(found.level, 0)} of the segments found are so by chance, on average, however often this is read (e-BH). A segment that is always unlike the rest has not drifted. Points and rates are of the last ${hours}; classes and estimated accuracy of the newest 5,000 rows. Labels are those that arrived, which may not be typical; intervals of 95% hold for each segment by itself.`;
  at("segments").closest("section").hidden = false;
}
