// The input of a prediction, shown beside its vector: a picture, a text or a sound. Text is only ever set as text.

import { getJson } from "./api.js";
import { element } from "./notice.js";

const fetched = new Map();

function about(model, id) {
  const key = `${model} ${id}`;
  if (!fetched.has(key)) {
    if (fetched.size > 200) fetched.clear();
    fetched.set(key, getJson("/api/reference/about", { model, id: id.replaceAll("-", "") }));
  }
  return fetched.get(key);
}

/** Begin to load the reference of a point that is shown next. */
export async function preloadReference(model, point) {
  if (!point?.reference) return;
  try {
    const found = await about(model, point.id);
    if (found.kind === "image") new Image().src = found.source;
  } catch {
    fetched.delete(`${model} ${point.id}`);
  }
}

/** An element with the input of a point, which fills itself; null if the point has no reference. */
export function referenceOf(model, point) {
  if (!point.reference) return null;
  const name = element("figcaption", {}, element("bdi", { class: "mono" }, point.reference));
  const figure = element("figure", { class: "reference" }, name);
  fill(figure, name, model, point);
  return figure;
}

async function fill(figure, name, model, point) {
  const problem = (text) => figure.insertBefore(element("p", { class: "hint" }, `Not shown: ${text}.`), name);
  try {
    const found = await about(model, point.id);
    const onerror = () => {
      figure.querySelector("img, audio")?.remove();
      problem("the picture or sound cannot be loaded");
    };
    if (found.kind === "image") figure.insertBefore(element("img", { alt: "input of this prediction", src: found.source, onerror }), name);
    else if (found.kind === "audio") figure.insertBefore(element("audio", { controls: true, preload: "metadata", src: found.source, onerror }), name);
    else if (found.kind === "text") figure.insertBefore(element("pre", { dir: "auto", tabindex: 0 }, found.text), name);
    else problem(`the reference ${found.problem}`);
  } catch (error) {
    fetched.delete(`${model} ${point.id}`);
    problem(error.message.replace(/\.$/, ""));
  }
}
