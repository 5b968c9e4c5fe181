// Colours of figures. Those of classes and values come from the server, so that they are those of reports and pictures.

let classColours = ["#888888"];
let grades = [];

// The colours after these repeat a hue or are grey.
export const DISTINCT = 15;
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

/** Colour of a class, or of a curve, by its number. */
export function classColour(number) {
  return number < 0 ? UNKNOWN : classColours[number % classColours.length];
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
