// Positions of class names on the map, such that no two names overlap.

const GAP = 6;
const MOST = 150;
// In order of preference: above, below, right, left.
const SIDES = [[0, 1], [0, -1], [1, 0], [-1, 0]];
let pen = null;

function widthOf(text, size) {
  pen ??= document.createElement("canvas").getContext("2d");
  pen.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
  return pen.measureText(text).width + 4;
}

/**
 * Offset [x, y] in pixels, y upwards, of each label `{ x, y, text, weight }` from its place; null for a label that is left
 * out. Heavy labels are placed first, at most 150 of them, those without weight not at all.
 */
export function placeLabels(labels, size) {
  const height = size + 4;
  const taken = [];
  const found = labels.map(() => null);
  const order = labels.map((_, i) => i).filter((i) => labels[i].weight > 0).sort((a, b) => labels[b].weight - labels[a].weight).slice(0, MOST);
  for (const i of order) {
    const { x, y, text } = labels[i];
    const width = widthOf(text, size);
    for (const [right, up] of SIDES) {
      const shift = [right * (GAP + width / 2), up * (GAP + height / 2)];
      const box = [x + shift[0] - width / 2, y + shift[1] - height / 2, x + shift[0] + width / 2, y + shift[1] + height / 2];
      if (taken.every((other) => box[0] >= other[2] || box[2] <= other[0] || box[1] >= other[3] || box[3] <= other[1])) {
        taken.push(box);
        found[i] = shift;
        break;
      }
    }
  }
  return found;
}
