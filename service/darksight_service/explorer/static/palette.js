// Colours of figures. Class colours come from the server, so that they are those of reports and pictures.

let classColours = ["#888888"];

export const UNKNOWN = "#A4ACB8";
export const ACCEPT = "#0072B2";
export const REJECT = "#D55E00";

/** Set the colours of the classes, by their numbers. */
export function setClassColours(colours) {
  if (colours.length) classColours = colours;
}

/** Colour of a class by its number. */
export function classColour(number) {
  return number < 0 ? UNKNOWN : classColours[number % classColours.length];
}

/** Symbol of a class, because 100 colours cannot be told apart. */
export function classSymbol(number) {
  return ["circle", "square", "diamond", "triangle-up", "pentagon"][Math.floor(Math.max(number, 0) / 16) % 5];
}

/** Cividis: from dark to light, also in greyscale. */
export const SCALE = [
  [0, "#00224E"], [0.13, "#123570"], [0.25, "#3B496C"], [0.38, "#575D6D"], [0.5, "#707173"],
  [0.63, "#8A8678"], [0.75, "#A59C74"], [0.88, "#C3B369"], [1, "#E1CC55"],
];

export const SCHEME = matchMedia("(prefers-color-scheme: dark)");

/** A colour of the style sheet, in light or dark mode. */
export function pageColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
