// Colours that are safe for colour-blind readers.

// Okabe and Ito's palette without black and yellow, then Tol's muted colours.
const CLASSES = [
  "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#332288", "#882255", "#117733", "#999933",
  "#AA4499", "#6699CC", "#661100", "#44AA99", "#888888",
];

export const UNKNOWN = "#B4BAC4";
export const ACCEPT = "#0072B2";
export const REJECT = "#D55E00";
export const INK = "#1C2430";
export const GRID = "#E6E9EE";

/** Colour of a class by its number; after the first fifteen, hues far from those of their neighbours. */
export function classColour(number) {
  if (number < 0) return UNKNOWN;
  if (number < CLASSES.length) return CLASSES[number];
  const turn = (number - CLASSES.length) * 137.508;
  const light = [38, 52, 64][number % 3];
  return hex(turn % 360, 0.58, light / 100);
}

/** Symbol of a class, because 100 colours cannot be told apart. */
export function classSymbol(number) {
  return ["circle", "square", "diamond", "triangle-up", "pentagon"][Math.floor(Math.max(number, 0) / CLASSES.length) % 5];
}

/** Cividis: from dark to light, also in greyscale. */
export const SCALE = [
  [0, "#00224E"], [0.13, "#123570"], [0.25, "#3B496C"], [0.38, "#575D6D"], [0.5, "#707173"],
  [0.63, "#8A8678"], [0.75, "#A59C74"], [0.88, "#C3B369"], [1, "#E1CC55"],
];

function hex(hue, saturation, light) {
  const chroma = saturation * Math.min(light, 1 - light);
  const part = (n) => {
    const k = (n + hue / 30) % 12;
    return Math.round(255 * (light - chroma * Math.max(-1, Math.min(k - 3, 9 - k, 1)))).toString(16).padStart(2, "0");
  };
  return `#${part(0)}${part(8)}${part(4)}`;
}
