// The points page: filters, pages, details of a point, CSV file.

import { address, getJson } from "./api.js";
import { count, fixed, percent, setText, spanOf, spanOptions, table, tagBadges, when } from "./figures.js";
import { element, openControls, showEmpty } from "./notice.js";
import { classColour } from "./palette.js";
import { referenceOf } from "./reference.js";
import { openPage } from "./shell.js";
import { readState, writeState } from "./state.js";

const DEFAULTS = { span: "7d", since: 0, until: 0, decisions: "", reasons: "", classes: "", tags: "", name: "", token: "", sort: "" };
const at = (id) => document.getElementById(id);
const page = await openPage();
const state = readState(DEFAULTS);
let names = [];

/** A page token is valid for exactly the same request, so the second page fixes a span that ends now. */
let span = spanOf(state);
const asked = () => ({ model: page.model, version: page.version, ...span, decisions: state.decisions, reasons: state.reasons, classes: state.classes, tags: state.tags });
const className = (number) => (number < 0 ? "–" : names[number] ?? String(number));
const score = (point, name) => (Number.isInteger(point[name]) ? count(point[name]) : fixed(point[name], name === "p_value" ? 4 : 3));
const badge = (point) => element("span", { class: `badge ${point.decision.toLowerCase()}` }, point.decision === "ACCEPT" ? "accept" : point.reason.toLowerCase().replace("_", " "));

function link(point) {
  const query = new URLSearchParams({ model: page.model, name: point.prediction_id });
  return element("a", { class: "mono", href: `/points?${query}` }, point.prediction_id);
}

/** Tags, each a link to the points that have it; a reference is not a filter. */
function tagCell(point) {
  return element("span", {}, ...tagBadges(point.tags, (pair, key) => {
    const text = element("bdi", { class: "badge" }, pair);
    return key === "reference" ? text : element("a", { href: `/points?${new URLSearchParams({ model: page.model, tags: pair })}` }, text);
  }));
}

function classCell(number) {
  return element("span", {}, element("span", { class: "swatch", style: `background:${classColour(number)}` }), className(number));
}

function labelCell(point) {
  if (point.label < 0) return "–";
  return element("span", { class: `badge ${point.label === point.predicted ? "right" : "wrong"}` }, className(point.label));
}

function showTable(found) {
  names = found.class_names;
  if (!found.points.length) {
    const hasFilter = state.decisions || state.reasons || state.classes || state.tags || state.name;
    showEmpty(at("table"), state.name ? "No point has this id" : "No points match",
      hasFilter ? "Clear the filters, or choose a longer time span." : "Send predictions with client.score(model, probs), or choose a longer time span. Points appear here within a second.");
  } else {
    const scores = Object.keys(found.labels).filter((name) => found.points.some((point) => point[name]));
    const hasTags = found.points.some((point) => Object.keys(point.tags).length);
    const rows = found.points.map((point) => ({
      cells: [when(point.received_ms), link(point), classCell(point.predicted), badge(point), ...scores.map((name) => score(point, name)), labelCell(point), ...(hasTags ? [tagCell(point)] : [])],
      keys: [point.received_ms, point.prediction_id, className(point.predicted), point.decision === "ACCEPT" ? "" : point.reason, ...scores.map((name) => point[name]), point.label < 0 ? null : className(point.label), ...(hasTags ? [tagBadges(point.tags, (pair) => pair).join() || null] : [])],
    }));
    at("table").replaceChildren(table(["received", "prediction id", "predicted", "decision", ...scores.map((name) => found.labels[name]), "label", ...(hasTags ? ["tags"] : [])], rows, {
      numbers: scores.map((_, number) => number + 4), sort: state.sort === "" ? null : Number(state.sort),
      onsort: (sort) => {
        state.sort = String(sort);
        writeState(state, DEFAULTS, { replace: true });
      },
    }));
  }
}

function showDetail(point) {
  const detail = at("detail");
  detail.hidden = false;
  const order = point.probs.map((value, number) => [value, number]).sort((a, b) => b[0] - a[0]).slice(0, 15);
  const source = (rank) => (point.known && rank >= point.known ? " completed" : "");
  const bars = order.flatMap(([value, number], rank) => [
    element("span", { class: "swatch", style: `background:${classColour(number)}` }), element("span", {}, className(number)),
    element("div", { class: "bar-track" }, element("div", { class: "bar-fill", style: `width:${100 * Math.max(value, 0)}%` })), element("span", {}, percent(value, 2) + source(rank)),
  ]);
  const facts = [["point", point.id], ["version", point.version.slice(0, 12)], ["map coordinates", `${fixed(point.x, 2)}, ${fixed(point.y, 2)}`], ["shadow", point.is_shadow ? "yes" : "no"]];
  if (point.set_size) facts.push(["prediction set", setText(point, className)]);
  if (Object.keys(point.tags).length) facts.push(["tags", tagCell(point)]);
  if (point.trace_id) facts.push(["trace", point.trace_id]);
  detail.replaceChildren(
    element("h2", {}, `Prediction ${point.prediction_id}`),
    referenceOf(page.model, point) ?? "",
    element("div", { class: "grid" },
      element("div", { class: "half" }, table(["", ""], facts.map((cells) => ({ cells })))),
      element("div", { class: "half" }, order.length ? element("div", { class: "bars" }, ...bars) : "No probabilities are stored (keep_probabilities = none).")),
  );
}

const load = () =>
  page.guard(async () => {
    at("detail").hidden = true;
    if (state.name) {
      const found = await getJson("/api/points/find", { model: page.model, name: state.name });
      showTable(found);
      fillClasses();
      at("used").textContent = `${count(found.points.length)} point${found.points.length === 1 ? "" : "s"} with this id.`;
      if (found.points.length) showDetail(found.points[0]);
      at("next").disabled = at("first").disabled = true;
      return;
    }
    const found = await getJson("/api/points", { ...asked(), page_token: state.token });
    showTable(found);
    at("used").textContent = `${count(found.points.length)} points on this page, received ${when(found.since_ms)} to ${when(found.until_ms)}. Column titles sort the page. The CSV file has up to 100,000 points.`;
    at("first").disabled = !state.token;
    at("next").disabled = !found.next_token;
    at("next").onclick = () => {
      Object.assign(state, { token: found.next_token, since: found.since_ms, until: found.until_ms });
      span = spanOf(state);
      writeState(state, DEFAULTS);
      load();
    };
    at("csv").href = address("/api/points.csv", asked());
    fillClasses();
  });

function fillClasses() {
  if (at("classes").options.length) return;
  at("classes").replaceChildren(element("option", { value: "" }, "any"), ...names.map((name, number) => element("option", { value: number, selected: state.classes === String(number) }, name)));
}

function show() {
  spanOptions(at("span"), state, ["1h", "24h", "7d", "30d"]);
  for (const id of ["decisions", "reasons", "tags", "name"]) at(id).value = state[id];
}

at("filters").addEventListener("submit", (event) => {
  event.preventDefault();
  const keeps = at("span").value === "";
  Object.assign(state, { token: "", name: at("name").value.trim(), tags: at("tags").value.trim() }, keeps ? {} : { span: at("span").value, since: 0, until: 0 });
  for (const id of ["decisions", "reasons", "classes"]) state[id] = at(id).value;
  span = spanOf(state);
  writeState(state, DEFAULTS);
  load();
});
at("clear").addEventListener("click", () => {
  Object.assign(state, DEFAULTS);
  span = spanOf(state);
  writeState(state, DEFAULTS);
  show();
  at("classes").value = "";
  load();
});
at("first").addEventListener("click", () => {
  state.token = "";
  writeState(state, DEFAULTS);
  load();
});
addEventListener("popstate", () => location.reload());
show();
openControls();
await load();
