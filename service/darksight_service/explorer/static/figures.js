// Numbers, times and spans of time as people read them; shared by the pages of figures.

import { element } from "./notice.js";

export const DAY_MS = 86400000;

const SPANS = { "1h": 3600000, "6h": 6 * 3600000, "24h": DAY_MS, "7d": 7 * DAY_MS, "30d": 30 * DAY_MS };

const WORDS = { "1h": "Last hour", "6h": "Last 6 hours", "24h": "Last 24 hours", "7d": "Last 7 days", "30d": "Last 30 days" };

/** A share in per cent with as many digits as it deserves. */
export function percent(share, digits = 1) {
  return share === null || share === undefined ? "–" : `${(100 * share).toFixed(digits)}%`;
}

export function count(number) {
  return number === null || number === undefined ? "–" : Number(number).toLocaleString("en");
}

export function fixed(number, digits = 3) {
  return number === null || number === undefined ? "–" : Number(number).toFixed(digits);
}

/** A p-value: small ones as a power of ten. */
export function chance(p) {
  if (p === null || p === undefined) return "–";
  return p < 0.001 ? Number(p).toExponential(1) : Number(p).toFixed(3);
}

/** A time in UTC, so that two people see the same. */
export function when(ms) {
  return ms ? `${new Date(ms).toISOString().slice(0, 19).replace("T", " ")} UTC` : "–";
}

/** Value of a datetime-local input, in UTC. */
export function asInput(ms) {
  return new Date(ms).toISOString().slice(0, 16);
}

export function fromInput(text) {
  const ms = Date.parse(`${text}Z`);
  return Number.isFinite(ms) ? ms : 0;
}

/** Span of the state `{ span, since, until }` in Unix milliseconds; a named span ends now. */
export function spanOf(state) {
  if (state.since && state.until) return { since_ms: state.since, until_ms: state.until };
  const until = Date.now() + 1;
  return { since_ms: until - (SPANS[state.span] || DAY_MS), until_ms: until };
}

/** Options of a picker of spans; those that are longer than a page can show are left out. */
export function spanOptions(select, state, names) {
  const options = names.map((name) => element("option", { value: name, selected: name === state.span && !state.since }, WORDS[name]));
  if (state.since && state.until) options.push(element("option", { value: "", selected: true }, "As in the address"));
  select.replaceChildren(...options);
}

/** A figure with a word below it. */
export function stat(value, word, hint = "") {
  return element("div", { class: "stat", title: hint }, element("b", {}, value), element("span", {}, word));
}

/** A table from a header and rows of texts or elements; columns named in `numbers` are right-aligned. */
export function table(header, rows, { numbers = [], caption = "" } = {}) {
  const kind = (place) => ({ class: numbers.includes(place) ? "number" : null });
  return element(
    "table",
    {},
    caption ? element("caption", { class: "hint" }, caption) : null,
    element("thead", {}, element("tr", {}, ...header.map((text, place) => element("th", { scope: "col", ...kind(place) }, text)))),
    element(
      "tbody",
      {},
      ...rows.map(({ cells, mark }) => element("tr", { class: mark || null }, ...cells.map((cell, place) => element("td", kind(place), cell)))),
    ),
  );
}

/** Run `work` some time after the last call, so that a slider does not ask for every stop it passes. */
export function later(work, ms = 250) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...given), ms);
  };
}
