// Draws the map: density, points, centres, regions.

import { when } from "./figures.js";
import { placeLabels } from "./map-labels.js";
import { tagKey, tagShade } from "./map-tags.js";
import { ACCEPT, REJECT, UNKNOWN, classColour, classSymbol, colourScale, pageColour } from "./palette.js";
import { draw } from "./plot.js";

const BINS = 110;
const NAMED = 24;
const WRONG = "#1C2430";

/** Rows of `source` (`live` or `reference`) whose class is not hidden, newest first. */
export function filterRows(scene, source) {
  const columns = scene[source];
  const hidden = new Set(scene.state.hidden.map(Number));
  const rows = [];
  const classes = classColumn(scene, columns);
  for (let row = 0; row < columns.x.length; row += 1) if (!hidden.has(classes[row])) rows.push(row);
  return rows;
}

function classColumn(scene, columns) {
  return scene.state.colour === "label" ? columns.label : columns.predicted;
}

export async function drawMap(plot, scene) {
  const { state, map } = scene;
  const traces = [];
  const isShaded = scene.isShaded && scene.live;
  if (isShaded) traces.push(heatmap(scene));
  if (scene.contours) traces.push(contours(scene.contours));
  if (scene.reference && state.reference) traces.push(...points(scene, "reference"));
  if (scene.live && state.live && !isShaded) traces.push(...points(scene, "live"));
  if (map) traces.push(centres(scene));
  const range = state.view ? state.view.split(",").map(Number) : first(scene);
  const axis = { showgrid: false, zeroline: false, showticklabels: false, fixedrange: false };
  await draw(plot, traces, {
    margin: { l: 4, r: 4, t: 4, b: 4 },
    showlegend: false,
    hovermode: "closest",
    hoverdistance: 12,
    dragmode: scene.isDrawing ? "drawclosedpath" : "pan",
    newshape: { drawdirection: "diagonal" },
    uirevision: `${state.view}|${state.classes}`,
    shapes: shapes(scene),
    annotations: annotations(plot, scene, range),
    xaxis: { ...axis, range: [range[0], range[1]] },
    yaxis: { ...axis, range: [range[2], range[3]], scaleanchor: "x" },
  }, { config: { modeBarButtonsToRemove: ["toImage", "select2d", "lasso2d", "autoScale2d"] } });
  plot.setAttribute("aria-label", describe(scene));
}

function describe(scene) {
  const { map, state } = scene;
  if (!map) return "Map of predictions";
  const live = scene.live && state.live ? `${scene.isShaded ? "density of " : ""}${scene.live.x.length} stored points, ` : "";
  return `Map of ${map.model}: ${live}${scene.reference && state.reference ? `${scene.reference.x.length} reference points, ` : ""}` +
    `${map.means.length} classes, coloured by ${tagKey(state) ? `tag ${tagKey(state)}` : state.colour.replace("_", "-")}, ${scene.regions.length} regions.`;
}

function whole(map) {
  return map ? [map.view[0][0], map.view[1][0], map.view[0][1], map.view[1][1]] : [0, 1, 0, 1];
}

/** The first view: all of the map, or the part where the chosen classes are. */
function first({ map, state, reference }) {
  if (!map || !state.classes.length || !reference || !reference.x.length) return whole(map);
  const ends = [reference.x, reference.y].flatMap((column) => {
    const sorted = Float32Array.from(column).sort();
    return [sorted[Math.floor(0.01 * sorted.length)], sorted[Math.ceil(0.99 * sorted.length) - 1]];
  });
  const margin = 0.1 * Math.max(ends[1] - ends[0], ends[3] - ends[2], 1e-6);
  return ends.map((end, i) => end + (i % 2 ? margin : -margin));
}

/** The view after a relayout, as text for the URL; null if the view did not change. */
export function viewOf(plot, changed) {
  if (!Object.keys(changed).some((name) => name.startsWith("xaxis.") || name.startsWith("yaxis."))) return null;
  const { xaxis, yaxis } = plot._fullLayout;
  return [...xaxis.range, ...yaxis.range].map((value) => Number(value).toPrecision(6)).join(",");
}

/** Pan or zoom, relative to the current view. */
export function lookAt(plot, { by = [0, 0], zoom = 1 }) {
  const next = {};
  ["xaxis", "yaxis"].forEach((name, i) => {
    const [low, high] = plot._fullLayout[name].range;
    const middle = (low + high) / 2 + by[i] * (high - low);
    const half = (zoom * (high - low)) / 2;
    next[`${name}.range`] = [middle - half, middle + half];
  });
  window.Plotly.relayout(plot, next);
}

/** Zoom to a polygon. */
export function zoomTo(plot, polygon) {
  const ends = [0, 1].map((i) => [Math.min(...polygon.map((corner) => corner[i])), Math.max(...polygon.map((corner) => corner[i]))]);
  const margin = 0.6 * Math.max(...ends.map(([low, high]) => high - low));
  window.Plotly.relayout(plot, {
    "xaxis.range": [ends[0][0] - margin, ends[0][1] + margin],
    "yaxis.range": [ends[1][0] - margin, ends[1][1] + margin],
  });
}

function contours({ x, y, z, meta }) {
  const grid = Array.from({ length: meta.rows }, (_, row) => z.subarray(row * meta.columns, (row + 1) * meta.columns));
  const top = z.reduce((most, value) => Math.max(most, value), -Infinity);
  return {
    type: "contour", x, y, z: grid, showscale: false, hoverinfo: "skip", autocontour: false,
    contours: { coloring: "none", start: Math.ceil(top) - 8, end: Math.ceil(top), size: 0.5 },
    line: { width: 0.7, color: pageColour("edge"), smoothing: 0.6 },
  };
}

function heatmap(scene) {
  const [x0, x1, y0, y1] = whole(scene.map);
  const counts = Array.from({ length: BINS }, () => new Float32Array(BINS));
  const { x, y } = scene.live;
  for (const row of filterRows(scene, "live")) {
    const i = Math.floor(((x[row] - x0) / (x1 - x0)) * BINS);
    const j = Math.floor(((y[row] - y0) / (y1 - y0)) * BINS);
    if (i >= 0 && i < BINS && j >= 0 && j < BINS) counts[j][i] += 1;
  }
  return {
    type: "heatmap", x0: x0 + (x1 - x0) / BINS / 2, dx: (x1 - x0) / BINS, y0: y0 + (y1 - y0) / BINS / 2, dy: (y1 - y0) / BINS,
    z: counts.map((line) => Array.from(line, (count) => (count ? Math.log1p(count) : null))), hoverinfo: "skip", showscale: false,
    colorscale: [[0, "#DCE9F5"], [0.5, "#5A9BD0"], [1, "#08306B"]], zsmooth: false,
  };
}

/** Points of one source: one trace per colour; wrong predictions are crosses. */
function points(scene, source) {
  const { colour } = scene.state;
  if (["entropy", "confidence", "p_value", "time"].includes(colour)) return graded(scene, source, colour);
  const groups = new Map();
  const columns = scene[source];
  const byClass = classShade(classColumn(scene, columns));
  const shade = colour === "decision" ? decisionShade : tagKey(scene.state) ? tagShade(scene) : byClass;
  for (const row of filterRows(scene, source)) {
    const isWrong = columns.label[row] >= 0 && columns.label[row] !== columns.predicted[row];
    const [fill, symbol, layer = 1] = shade(columns, row);
    const key = `${fill}|${symbol}|${isWrong}`;
    if (!groups.has(key)) groups.set(key, { fill, symbol, layer, isWrong, rows: [] });
    groups.get(key).rows.push(row);
  }
  // Crosses last, so that they are on top.
  const ordered = [...groups.values()].sort((a, b) => a.isWrong - b.isWrong || a.layer - b.layer);
  return ordered.map((group) => trace(scene, source, group.rows, group.isWrong, { color: group.fill, symbol: group.symbol }));
}

function classShade(classes) {
  return (columns, row) => [classColour(classes[row]), classSymbol(classes[row])];
}

function decisionShade(columns, row) {
  if (!columns.is_accepted) return [UNKNOWN, "circle"];
  return columns.is_accepted[row] ? [ACCEPT, "circle"] : [REJECT, "diamond"];
}

function graded(scene, source, colour) {
  const columns = scene[source];
  const values = { entropy: columns.entropy, confidence: columns.top, p_value: columns.p_value, time: columns.time }[colour];
  const rows = filterRows(scene, source);
  if (!values) return [trace(scene, source, rows, false, { color: UNKNOWN })];
  const isWrong = (row) => columns.label[row] >= 0 && columns.label[row] !== columns.predicted[row];
  const ends = limits(scene, colour, values);
  return [false, true].flatMap((wanted) => {
    const some = rows.filter((row) => isWrong(row) === wanted);
    if (some.length === 0) return [];
    const marker = { color: Float32Array.from(some, (row) => (values[row] - ends.shift)), colorscale: colourScale(), cmin: ends.low, cmax: ends.high };
    const hasScale = !wanted && (source === "live" || !scene.live || !scene.state.live || colour === "time" || colour === "p_value");
    if (hasScale) marker.colorbar = { title: { text: colour === "time" ? "time, UTC" : colour.replace("_", "-"), side: "right" }, thickness: 12, len: 0.5, y: 0.25, outlinewidth: 0, ...ends.ticks };
    return [trace(scene, source, some, wanted, { ...marker, showscale: hasScale })];
  });
}

function limits(scene, colour, values) {
  const chosen = scene.state.classes.length || scene.map.class_names.length;
  if (colour === "entropy") return { low: 0, high: Math.log(Math.max(chosen, 2)), shift: 0, ticks: {} };
  if (colour !== "time") return { low: 0, high: 1, shift: 0, ticks: {} };
  // Unix milliseconds do not fit into a float32: count from the oldest point.
  const oldest = values.reduce((least, value) => Math.min(least, value), Infinity);
  const newest = values.reduce((most, value) => Math.max(most, value), -Infinity);
  const ticks = [0, 0.5, 1].map((part) => part * (newest - oldest));
  const texts = ticks.map((tick) => when(oldest + tick).slice(0, 16));
  return { low: 0, high: newest - oldest || 1, shift: oldest, ticks: { tickvals: ticks, ticktext: texts } };
}

function trace(scene, source, rows, isWrong, marker) {
  const { x, y } = scene[source];
  const isLive = source === "live";
  const isMany = rows.length > 20_000;
  return {
    type: "scattergl", mode: "markers", hoverinfo: "none", meta: { source, rows },
    x: Float32Array.from(rows, (row) => x[row]),
    y: Float32Array.from(rows, (row) => y[row]),
    marker: {
      size: isWrong ? 8 : isLive ? (isMany ? 4 : 6) : 4,
      opacity: isWrong ? (isLive || !scene.state.live ? 0.95 : 0.55) : isLive ? 0.85 : scene.live && scene.live.x.length && scene.state.live ? 0.28 : 0.6,
      ...marker,
      symbol: rows.map((row) => (Math.max(Math.abs(x[row]), Math.abs(y[row])) >= (1 - 1e-6) * scene.map.bound ? "square-open" : "circle")),
      ...(isWrong ? { symbol: "x", line: { width: isLive ? 0.8 : 0, color: WRONG } } : {}),
    },
  };
}

/** Classes that are shown, with their centres. */
function shown({ map, state }) {
  const hidden = new Set(state.hidden.map(Number));
  return map.classes.map((number, i) => ({ number, mean: map.means[i], isNear: map.has_points_near[i] }))
    .filter(({ number }) => !hidden.has(number) && (state.classes.length === 0 || state.classes.includes(String(number))));
}

// Also WebGL, because SVG is drawn below it.
function centres(scene) {
  const chosen = shown(scene);
  return {
    type: "scattergl", mode: "markers", hoverinfo: "text",
    x: chosen.map(({ mean }) => mean[0]),
    y: chosen.map(({ mean }) => mean[1]),
    text: chosen.map(({ number, isNear }) => escaped(scene.map.class_names[number]) + (isNear ? "" : ", no points near")),
    // Open, so that a star does not hide the points of a class that has a single place.
    marker: { symbol: chosen.map(({ isNear }) => (isNear ? "star-open" : "star-diamond-open")), size: chosen.length <= NAMED ? 13 : chosen.length <= 100 ? 8 : 4, color: pageColour("ink") },
  };
}

/** Names of classes that do not overlap in the view; frequent classes first. */
function names(plot, scene, range) {
  if (!scene.map) return [];
  const chosen = shown(scene);
  const counts = new Map();
  for (const number of scene.reference ? scene.reference.predicted : []) counts.set(number, (counts.get(number) || 0) + 1);
  const size = chosen.length <= NAMED ? 12 : 10;
  const texts = chosen.map(({ number }) => escaped(scene.map.class_names[number]));
  const scale = Math.min(plot.clientWidth / (range[1] - range[0]), plot.clientHeight / (range[3] - range[2]));
  const isInside = ([x, y]) => x >= range[0] && x <= range[1] && y >= range[2] && y <= range[3];
  const labels = chosen.map(({ number, mean }, i) => ({
    x: mean[0] * scale, y: mean[1] * scale, text: texts[i], weight: isInside(mean) ? 1 + (counts.get(number) || 0) : 0,
  }));
  return placeLabels(labels, size).flatMap((shift, i) => (shift === null ? [] : [{
    x: chosen[i].mean[0], y: chosen[i].mean[1], text: texts[i], showarrow: false, xshift: shift[0], yshift: shift[1],
    borderpad: 0, font: { size }, captureevents: false,
  }]));
}

/** Place the names anew after the view has changed. */
export function renameCentres(plot, scene) {
  const { xaxis, yaxis } = plot._fullLayout;
  window.Plotly.relayout(plot, { annotations: annotations(plot, scene, [...xaxis.range, ...yaxis.range].map(Number)) });
}

function shapes(scene) {
  const all = scene.regions.map((region) => ({ ...region, isDraft: false }));
  if (scene.draft) all.push({ ...scene.draft, isDraft: true });
  return all.map(({ polygon, is_enforced: isEnforced, isDraft }) => ({
    type: "path", path: `M${polygon.map((corner) => corner.join(",")).join("L")}Z`, layer: "above",
    line: { color: isDraft ? pageColour("accent") : REJECT, width: isDraft ? 3 : 2, dash: isEnforced || isDraft ? "solid" : "dash" },
    fillcolor: isDraft ? "rgba(11,92,173,0.10)" : isEnforced ? "rgba(213,94,0,0.16)" : "rgba(213,94,0,0.05)",
  }));
}

function annotations(plot, scene, range) {
  return names(plot, scene, range).concat(scene.regions.map(({ name, polygon, is_enforced: isEnforced }) => {
    const top = polygon.reduce((best, corner) => (corner[1] > best[1] ? corner : best));
    return {
      x: top[0], y: top[1], text: `${escaped(name)} · ${isEnforced ? "enforced" : "shadow"}`, showarrow: false, yshift: 9,
      font: { size: 11, color: REJECT },
    };
  }));
}

// plotly.js interprets some markup in texts.
function escaped(text) {
  return text.replace(/[<>&]/g, (sign) => ({ "<": "‹", ">": "›", "&": "+" })[sign]);
}
