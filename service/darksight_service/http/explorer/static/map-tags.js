// Colours of stored points by the values of a tag, and their legend.

import { element } from "./notice.js";
import { DISTINCT, UNKNOWN, classColour, pageColour } from "./palette.js";

const PREFIX = "tag:";
// In the column of the server: points without the tag, values without a text, and the number of the first text.
const NONE = 0;
const OTHER = 1;
const FIRST = 2;
// Both are grey, below the colours; they differ by shape.
const noneShade = () => [UNKNOWN, "circle", 0];
const otherShade = () => [pageColour("soft"), "square", 0];

/** The key of the tag that colours the points; empty if something else does. */
export function tagKey({ colour }) {
  return colour.startsWith(PREFIX) ? colour.slice(PREFIX.length) : "";
}

/** Add the keys of tags to the list of colours, also a key of the address that no point has. */
export function listTagKeys(select, keys, chosen) {
  const all = chosen && !keys.includes(chosen) ? [...keys, chosen] : keys;
  const options = all.map((key) => element("option", { value: PREFIX + key }, key));
  select.querySelector("optgroup")?.remove();
  if (options.length) select.append(element("optgroup", { label: "tag" }, ...options));
}

/** The column of a response as numbers of `texts`, to which the texts that it lacks are added. */
export function renumber(texts, { tag, meta }) {
  const numbers = meta.tag_values.map((text) => {
    if (!texts.includes(text)) texts.push(text);
    return texts.indexOf(text) + FIRST;
  });
  return tag.map((number) => (number < FIRST ? number : numbers[number - FIRST]));
}

/**
 * Count the values among `rows` and give a colour to the most frequent ones. A value keeps its colour while it is among
 * them, so that points do not change when new ones arrive.
 */
export function countTags(scene, rows) {
  const { tag, meta } = scene.live;
  const counts = new Float64Array(meta.tag_values.length + FIRST);
  for (const row of rows) counts[tag[row]] += 1;
  const ranked = meta.tag_values.map((text, i) => ({ text, number: i + FIRST, count: counts[i + FIRST] })).filter(({ count }) => count > 0);
  ranked.sort((a, b) => b.count - a.count || (a.text < b.text ? -1 : 1));
  const shown = ranked.slice(0, DISTINCT);
  const before = scene.tagSlots || new Map();
  const slots = new Map(shown.filter(({ text }) => before.has(text)).map(({ text }) => [text, before.get(text)]));
  const taken = new Set(slots.values());
  const free = Array.from({ length: DISTINCT }, (_, slot) => slot).filter((slot) => !taken.has(slot));
  for (const { text } of shown) if (!slots.has(text)) slots.set(text, free.shift());
  scene.tagSlots = slots;
  scene.tagCounts = {
    shown: shown.map((each) => ({ ...each, colour: classColour(slots.get(each.text)) })),
    rest: ranked.length - shown.length,
    other: counts[OTHER] + ranked.slice(DISTINCT).reduce((sum, { count }) => sum + count, 0),
    none: counts[NONE],
  };
}

/** Colour, symbol and layer of a row; reference points have no tags. */
export function tagShade(scene) {
  const [none, other] = [noneShade(), otherShade()];
  const shades = new Map([[NONE, none]]);
  for (const { number, colour } of scene.tagCounts ? scene.tagCounts.shown : []) shades.set(number, [colour, "circle"]);
  return (columns, row) => (columns.tag ? shades.get(columns.tag[row]) || other : none);
}

/** The values with their colours and numbers of points; nothing if points are not coloured by a tag. */
export function showTagLegend(scene) {
  const card = document.getElementById("tag-card");
  const key = tagKey(scene.state);
  card.hidden = !key;
  if (!key) return;
  document.getElementById("tag-title").textContent = `Tag ${key}`;
  const legend = document.getElementById("tag-legend");
  if (!scene.tagCounts) {
    const hint = scene.isShaded ? "A density has no colours: choose a number of points to show." : scene.state.live ? "" : "Stored points are hidden.";
    legend.replaceChildren(element("p", { class: "hint" }, hint));
    return;
  }
  const { shown, rest, other, none } = scene.tagCounts;
  const lines = shown.map(({ text, colour, count }) => line([colour, "circle"], element("bdi", { class: "name", title: text }, text), count));
  if (other) lines.push(line(otherShade(), element("em", { class: "name" }, rest ? `other (${rest.toLocaleString()} values)` : "other"), other));
  if (none) lines.push(line(noneShade(), element("em", { class: "name" }, "none"), none));
  legend.replaceChildren(...lines);
}

function line([colour, symbol], name, count) {
  const swatch = element("span", { class: `swatch ${symbol}`, "aria-hidden": "true" });
  swatch.style.background = colour;
  return element("div", { class: "line", role: "listitem" }, swatch, name, element("span", { class: "count" }, count.toLocaleString()));
}
