// Colours of figures. Those of classes and values come from the server, so that they are those of reports and pictures.

let classColours = ["#888888"];
let grades = [];

const SCORES = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#8C6BB1", "#B2182B", "#66A61E", "#A6761D", "#7F7F7F", "#17BECF"];

export const UNKNOWN = "#A4ACB8";
export const ACCEPT = "#0072B2";
export const REJECT = "#D55E00";

/** Set the colours of the classes, by their numbers, and of values from low to high. */
export function setColours(classes, values) {
  if (classes.length) classColours = classes;
  grades = values;
}

/** Colours from low to high values, for plotly.js. */
export function colourScale() {
  return grades.map((colour, i) => [i / (grades.length - 1), colour]);
}

/** Colour of a class by its number. */
export function classColour(number) {
  return number < 0 ? UNKNOWN : classColours[number % classColours.length];
}

/** Colour of a score in a comparison; scores are no classes, of which there may be two. */
export function scoreColour(number) {
  return SCORES[number % SCORES.length];
}

/** Symbol of a class, because 100 colours cannot be told apart. */
export function classSymbol(number) {
  return ["circle", "square", "diamond", "triangle-up", "pentagon"][Math.floor(Math.max(number, 0) / 16) % 5];
}

export const SCHEME = matchMedia("(prefers-color-scheme: dark)");

/** A colour of the style sheet, in light or dark mode. */
export function pageColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
