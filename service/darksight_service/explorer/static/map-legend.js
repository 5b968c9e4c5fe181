// Classes with their colours, to hide or to choose; made for 100 of them.

import { element } from "./notice.js";
import { REJECT, classColour } from "./palette.js";

/** `toggle(hidden)` hides classes, `only(classes)` leaves out all others; both get lists of numbers as text. */
export function showLegend(scene, { toggle, only }) {
  const { map, state } = scene;
  const place = document.getElementById("legend");
  const find = document.getElementById("find-class");
  const chosen = state.classes.length ? state.classes : map.classes.map(String);
  const hidden = new Set(state.hidden);
  find.hidden = chosen.length <= 15;
  place.replaceChildren(
    ...chosen.map((number) => {
      const name = map.class_names[number];
      const box = element("input", { type: "checkbox", value: number, checked: !hidden.has(number) });
      box.addEventListener("change", () => toggle(unchecked()));
      const swatch = element("span", { class: "swatch" });
      swatch.style.background = classColour(Number(number));
      return element("label", { title: name }, box, swatch, element("span", { class: "name" }, name));
    }),
  );
  const unchecked = () => [...place.querySelectorAll("input:not(:checked)")].map((box) => box.value);
  const checked = () => [...place.querySelectorAll("input:checked")].map((box) => box.value);
  const isSubset = state.classes.length > 0;
  const button = document.getElementById("only-classes");
  button.textContent = isSubset ? "Back to all classes" : "Only these";
  button.onclick = () => only(isSubset || checked().length === map.classes.length ? [] : checked());
  document.getElementById("all-classes").onclick = () => toggle([]);
  document.getElementById("no-classes").onclick = () => toggle([...chosen]);
  find.oninput = () => {
    for (const label of place.children) label.hidden = !label.title.toLowerCase().includes(find.value.toLowerCase());
  };
  document.getElementById("legend-card").querySelector(".marks")?.remove();
  document.getElementById("legend-card").append(
    element("div", { class: "marks hint" }, element("span", {}, "★ centre of a class"), element("span", {}, "✕ known to be wrong"), outline()),
  );
}

function outline() {
  const made = element("span", {}, "▱ region");
  made.style.color = REJECT;
  return made;
}
