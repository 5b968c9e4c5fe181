// The drift page: drift now; outlier rate, p-values and evidence over time; comparison of two windows.

import { getColumns, getJson } from "./api.js";
import { asInput, chance, count, fixed, fromInput, percent, spanOf, spanOptions, stat, table, when } from "./figures.js";
import { showNow } from "./drift-now.js";
import { showSegments } from "./drift-segments.js";
import { element, openControls, showEmpty } from "./notice.js";
import { ACCEPT, REJECT, classColour } from "./palette.js";
import { draw } from "./plot.js";
import { openPage } from "./shell.js";
import { readState, writeState } from "./state.js";

const DEFAULTS = { span: "latest", since: 0, until: 0, b0: 0, b1: 0, n0: 0, n1: 0 };
const at = (id) => document.getElementById(id);
const page = await openPage();
const state = readState(DEFAULTS);
const asked = { model: page.model, version: page.version };

const times = (all) => all.map((ms) => new Date(ms).toISOString());
const STILL = { automargin: false };
const WIDE = { l: 60, r: 16, t: 12, b: 44 };
const dashed = { color: "#5B6675", width: 1.4, dash: "dash" };

function showOverTime(found) {
  const { over_time: series, histogram } = found;
  const x = times(series.start_ms);
  // Steps without traffic have no rate, so lines end before them.
  const rates = series.outliers.map((each, step) => (series.rows[step] ? each / series.rows[step] : null));
  const custom = series.rows.map((rows, step) => [rows, series.outliers[step]]);
  const from = (other) => other.map((each, step) => (each === null ? null : Math.abs(each - rates[step])));
  const interval = { type: "data", symmetric: false, array: from(series.high), arrayminus: from(series.low), color: "rgba(0,114,178,0.35)", thickness: 1.5, width: 0 };
  const expected = series.expected;
  // At least ten minutes wide: the axis of a shorter window would count milliseconds.
  const spare = Math.max(600000 - (found.until_ms - found.since_ms), found.step_ms) / 2;
  const ends = times([found.since_ms - spare, found.until_ms + spare]);
  const time = { ...STILL, type: "date", range: ends };
  draw(at("rate"), [
    { type: "scatter", mode: "lines+markers", marker: { size: 4 }, name: "outlier rate", x, y: rates, error_y: interval, customdata: custom, line: { color: ACCEPT, width: 2 },
      hovertemplate: "%{y:.2%}: %{customdata[1]} of %{customdata[0]}<br>%{x}<extra></extra>" },
    ...(expected === null ? [] : [{ type: "scatter", mode: "lines", name: "without drift", x: ends, y: [expected, expected], line: dashed, hoverinfo: "skip" }]),
  ], { yaxis: { ...STILL, tickformat: ".1%", rangemode: "tozero" }, xaxis: time, margin: WIDE, showlegend: false }, { label: `Outlier rate in ${x.length} steps` });
  if (series.evidence) {
    draw(at("evidence"), [
      { type: "scatter", mode: "lines+markers", marker: { size: 4 }, x, y: series.evidence, line: { color: REJECT, width: 2 }, hovertemplate: "ln M = %{y:.1f}<br>%{x}<extra></extra>" },
      { type: "scatter", mode: "lines", x: ends, y: [series.threshold, series.threshold], line: dashed, hoverinfo: "skip" },
    ], { yaxis: { ...STILL, title: { text: "ln M" } }, xaxis: time, margin: WIDE, showlegend: false }, { label: `Evidence, up to ${fixed(Math.max(...series.evidence.filter((each) => each !== null)), 1)}; alarm at ${fixed(series.threshold, 1)}` });
    at("evidence-hint").textContent =
      `Without drift it crosses the dashed line with a probability of at most ${percent(found.level, 0)}, however often it is checked. Counted from the start of the window` +
      (found.rule_since_ms > found.since_ms ? `, or from the last change of the outlier level (${when(found.rule_since_ms)}).` : "; this does not hold for a start that was chosen after seeing the data.");
  } else showEmpty(at("evidence"), "The gate has no outlier rule", "Set a level α on the gate page to get evidence.");
  const bins = histogram.counts.length;
  const total = histogram.counts.reduce((sum, each) => sum + each, 0);
  const centres = histogram.counts.map((_, bin) => (bin + 0.5) / bins);
  draw(at("bins"), [{ type: "bar", x: centres, y: histogram.counts.map((each) => each / total), customdata: histogram.counts, marker: { color: centres.map((_, bin) => (histogram.counts[bin] / total > histogram.high ? REJECT : ACCEPT)) },
    hovertemplate: "%{customdata} rows, %{y:.1%}<extra></extra>" }], {
    bargap: 0.08, margin: WIDE, xaxis: { ...STILL, title: { text: "p-value" }, range: [0, 1] }, yaxis: { ...STILL, tickformat: ".0%", title: { text: "share of rows" } },
    shapes: [{ type: "rect", x0: 0, x1: 1, y0: histogram.low, y1: histogram.high, fillcolor: "rgba(91,102,117,0.22)", line: { width: 0 } }],
  }, { label: `Histogram of ${total} p-values in ${bins} bins` });
  draw(at("psi"), [
    { type: "scatter", mode: "lines+markers", x, y: series.psi, customdata: series.rows, line: { color: ACCEPT, width: 1.6 }, marker: { size: 4 }, hovertemplate: "PSI %{y:.3f} of %{customdata} rows<br>%{x}<extra></extra>" },
    { type: "scatter", mode: "lines", x, y: series.psi_critical, line: dashed, hoverinfo: "skip" },
  ], { yaxis: { ...STILL, rangemode: "tozero" }, xaxis: time, margin: WIDE, showlegend: false }, { label: "PSI against uniform over time, with its critical value" });
  showVerdicts(found, total);
}

function showVerdicts(found, total) {
  const { over_time: series, histogram } = found;
  const outliers = series.outliers.reduce((sum, each) => sum + each, 0);
  const last = series.evidence ? Math.max(...series.evidence.map((each) => (each === null ? -Infinity : each))) : null;
  const verdict = histogram.verdict;
  const isAlarm = last !== null && last >= series.threshold;
  at("verdicts").replaceChildren(
    stat(percent(outliers / total, 2), "outliers", "share of scored points in this window"),
    stat(series.expected === null ? "–" : percent(series.expected, 2), "expected without drift"),
    stat(last === null || !Number.isFinite(last) ? "–" : isAlarm ? "alarm" : "no alarm", `evidence ${last === null || !Number.isFinite(last) ? "" : fixed(last, 1)} (alarm at ${fixed(series.threshold, 1)})`),
    stat(verdict ? fixed(verdict.psi, 3) : "–", verdict ? `PSI, critical ${fixed(verdict.critical, 3)}` : "PSI"),
    stat(!verdict ? "–" : verdict.is_alert ? "alert" : verdict.psi > verdict.critical ? "small change" : "no change", "by PSI", "an alert needs significance, a PSI above 0.1 and enough rows"),
  );
  at("used").textContent = `${count(total)} scored points in ${count(series.rows.filter(Boolean).length)} steps of ${Math.round(found.step_ms / 60000)} min; ${count(found.calibration_rows)} calibration rows.`;
}

function showComparison(id, found, what) {
  const rows = found.cells.slice(0, 25).map((cell) => ({
    mark: cell.is_moved ? "moved" : null,
    cells: [cell.name, percent(cell.share_before), percent(cell.share_now), `${cell.residual >= 0 ? "+" : "−"}${Math.abs(cell.residual).toFixed(1)}`, chance(cell.p_value),
      ...(what === "class" ? [percent(cell.outliers_before), percent(cell.outliers_now)] : [])],
  }));
  const header = [what, "before", "now", "z", "p", ...(what === "class" ? ["outliers before", "now"] : [])];
  const test = found.p_value === null ? "One of the windows is empty." : `Joint test: χ² = ${fixed(found.statistic, 1)}, ${found.dof} degrees of freedom, p = ${chance(found.p_value)}. Marked rows changed at the 1% level, corrected for the number of rows (Holm).`;
  at(id).replaceChildren(table(header, rows, { numbers: [1, 2, 3, 4, 5, 6] }), element("p", { class: "hint" }, test));
}

function drawMaps(found) {
  const names = found.meta.class_names;
  const all = ["before", "now"];
  const range = (axis) => {
    const values = all.flatMap((name) => Array.from(found[`${name}_${axis}`])).sort((a, b) => a - b);
    if (!values.length) return undefined;
    const low = values[Math.floor(0.002 * values.length)], high = values[Math.floor(0.998 * (values.length - 1))];
    return [low - 0.06 * (high - low) - 1e-6, high + 0.06 * (high - low) + 1e-6];
  };
  for (const name of all) {
    const classes = Array.from(found[`${name}_class`]), outliers = found[`${name}_outlier`];
    draw(at(`map-${name}`), [{
      type: "scatter", mode: "markers", x: Array.from(found[`${name}_x`]), y: Array.from(found[`${name}_y`]), text: classes.map((each) => names[each] || "–"),
      marker: { size: 5, opacity: 0.7, color: classes.map(classColour), symbol: Array.from(outliers, (each) => (each ? "x" : "circle")) }, hovertemplate: "%{text}<extra></extra>",
    }], { xaxis: { ...STILL, range: range("x"), showticklabels: false }, yaxis: { ...STILL, range: range("y"), showticklabels: false }, showlegend: false, margin: { l: 8, r: 8, t: 4, b: 8 } },
    { label: `Map of ${classes.length} points, ${name}` });
  }
}

const compare = () =>
  page.guard(async () => {
    const found = await getColumns("/api/drift/windows", { ...asked, before_since_ms: state.b0, before_until_ms: state.b1, now_since_ms: state.n0, now_until_ms: state.n1 });
    const { meta } = found;
    const clouds = meta.clouds ? ` Distributions on the map differ with p = ${chance(meta.clouds.p_value)} (MMD test of ${meta.clouds.rows.map(count).join(" and ")} points; the smallest possible p is 0.005).` : "";
    at("compared").textContent = `${count(meta.totals.before)} and ${count(meta.totals.now)} points, of which ${count(meta.drawn.before)} and ${count(meta.drawn.now)} are drawn. Crosses are outliers.${clouds}`;
    drawMaps(found);
    showComparison("classes", meta.classes, "class");
    if (meta.regions) showComparison("regions", meta.regions, "region");
    else showEmpty(at("regions"), "This version has no regions", element("span", {}, "Draw one on the ", element("a", { href: `/map?model=${encodeURIComponent(page.model)}` }, "map"), " to compare its share of the points."));
  });

function setWindows(span) {
  const middle = Math.round((span.since_ms + span.until_ms) / 120000) * 60000;
  const initial = { b0: span.since_ms, b1: middle, n0: middle, n1: span.until_ms };
  for (const [name, value] of Object.entries(initial)) state[name] = state[name] || value;
  const inputs = { "before-since": "b0", "before-until": "b1", "now-since": "n0", "now-until": "n1" };
  for (const [id, name] of Object.entries(inputs)) at(id).value = asInput(state[name]);
  at("windows").addEventListener("submit", (event) => {
    event.preventDefault();
    for (const [id, name] of Object.entries(inputs)) state[name] = fromInput(at(id).value);
    writeState(state, DEFAULTS);
    compare();
  });
}

spanOptions(at("span"), state, ["latest", "1h", "6h", "24h", "7d"]);
at("span").addEventListener("change", () => {
  Object.assign(state, DEFAULTS, { span: at("span").value });
  writeState(state, DEFAULTS);
  location.reload();
});
openControls();
await page.guard(async () => showNow(await getJson("/api/drift/now", asked), new URLSearchParams({ model: page.model })));
await page.guard(async () => showSegments(await getJson("/api/drift/segments", asked), new URLSearchParams({ model: page.model })));
await page.guard(async () => {
  const found = await getJson("/api/drift", { ...asked, ...(state.since || state.span !== "latest" ? spanOf(state) : {}) });
  setWindows(found);
  if (!found.over_time.start_ms.length) {
    at("figures").hidden = true;
    at("nothing").hidden = false;
    const around = found.newest_ms ? { since: found.newest_ms - 86400000, until: found.newest_ms + 60000 } : null;
    const query = around && new URLSearchParams({ model: page.model, ...around });
    showEmpty(at("nothing"), "No scored points in this window", found.newest_ms
      ? element("span", {}, `The newest point is from ${when(found.newest_ms)}. `, element("a", { href: `/drift?${query}` }, "Show the day before it"))
      : "Send predictions with client.score(model, probs); they appear here within a second.");
    return;
  }
  showOverTime(found);
  await compare();
});
