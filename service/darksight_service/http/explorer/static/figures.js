// Formatting of numbers, times and spans, shared by the pages.

import { element } from "./notice.js";

export const DAY_MS = 86400000;

const SPANS = { "1h": 3600000, "24h": DAY_MS, "7d": 7 * DAY_MS, "30d": 30 * DAY_MS };

const WORDS = { "1h": "Last hour", "24h": "Last 24 hours", "7d": "Last 7 days", "30d": "Last 30 days" };

/** A share in per cent. */
export function percent(share, digits = 1) {
  return share === null || share === undefined ? "–" : `${(100 * share).toFixed(digits)}%`;
}

export function count(number) {
  return number === null || number === undefined ? "–" : Number(number).toLocaleString("en");
}

export function fixed(number, digits = 3) {
  return number === null || number === undefined ? "–" : Number(number).toFixed(digits);
}

/** The classes of a prediction set, or their number if the stored probabilities do not tell which they are. */
export function setText(point, className) {
  const shown = point.prediction_set.slice(0, 10).map(className).join(", ");
  if (!shown) return `${count(point.set_size)} classes`;
  return point.set_size > 10 ? `${shown} and ${count(point.set_size - 10)} more` : shown;
}

/** Tags as badges. Their text comes from callers, so each is isolated from the direction of the text around it. */
export function tagBadges(tags, make = (pair) => element("bdi", { class: "badge" }, pair)) {
  return Object.entries(tags || {}).sort().map(([key, value]) => make(`${key}=${value}`, key));
}

/** A time in UTC. */
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

/** Fill a picker of spans. */
export function spanOptions(select, state, names) {
  const options = names.map((name) => element("option", { value: name, selected: name === state.span && !state.since }, WORDS[name]));
  if (state.since && state.until) options.push(element("option", { value: "", selected: true }, "As in the URL"));
  select.replaceChildren(...options);
}

/** A number with a label below it. */
export function stat(value, label, hint = "") {
  return element("div", { class: "stat", title: hint }, element("b", {}, value), element("span", {}, label));
}

/**
 * A table from a header and rows of texts or elements; columns named in `numbers` are right-aligned. With `onsort` the
 * column titles are buttons that sort the rows by their `keys`; `sort` is the column, `-1 - column` if descending.
 */
export function table(header, rows, { numbers = [], caption = "", sort = null, onsort = null } = {}) {
  const kind = (column) => ({ class: numbers.includes(column) ? "number" : null });
  const line = ({ cells, mark }) => element("tr", { class: mark || null }, ...cells.map((cell, column) => element("td", kind(column), cell)));
  const body = element("tbody");
  const titles = header.map((text, column) => element("th", { scope: "col", ...kind(column) },
    onsort ? element("button", { type: "button", onclick: () => show(sort === column ? -1 - column : column) }, text) : text));
  const show = (next) => {
    if (onsort && next !== sort) onsort(next);
    sort = next;
    const column = sort === null ? null : sort < 0 ? -1 - sort : sort;
    titles.forEach((title, i) => (i === column ? title.setAttribute("aria-sort", sort < 0 ? "descending" : "ascending") : title.removeAttribute("aria-sort")));
    body.replaceChildren(...(column === null ? rows : sorted(rows, column, sort < 0 ? -1 : 1)).map(line));
  };
  show(sort);
  return element("table", {}, caption ? element("caption", { class: "hint" }, caption) : null, element("thead", {}, element("tr", {}, ...titles)), body);
}

/** Rows by one of their keys; missing ones last in both directions. */
function sorted(rows, column, sign) {
  const isMissing = (key) => key === null || key === undefined || Number.isNaN(key);
  return [...rows].sort(({ keys: { [column]: a } }, { keys: { [column]: b } }) =>
    isMissing(a) || isMissing(b) ? isMissing(a) - isMissing(b) : sign * (a < b ? -1 : a > b ? 1 : 0));
}

/** Debounce: run `work` some time after the last call. */
export function later(work, ms = 250) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...given), ms);
  };
}
