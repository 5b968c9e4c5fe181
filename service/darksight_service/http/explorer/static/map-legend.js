// The legend: hides or selects classes; usable with 100 of them.

import { element } from "./notice.js";
import { REJECT, classColour } from "./palette.js";

/** `toggle(hidden)` hides classes, `only(classes)` hides all others; both get class numbers as text. */
export function showLegend(scene, { toggle, only }) {
  const { map, state } = scene;
  const legend = document.getElementById("legend");
  const find = document.getElementById("find-class");
  const chosen = state.classes.length ? state.classes : map.classes.map(String);
  const hidden = new Set(state.hidden);
  find.hidden = chosen.length <= 15;
  legend.replaceChildren(
    ...chosen.map((number) => {
      const name = map.class_names[number];
      const box = element("input", { type: "checkbox", value: number, checked: !hidden.has(number) });
      box.addEventListener("change", () => toggle(unchecked()));
      const swatch = element("span", { class: "swatch" });
      swatch.style.background = classColour(Number(number));
      return element("label", { title: name }, box, swatch, element("span", { class: "name" }, name));
    }),
  );
  const unchecked = () => [...legend.querySelectorAll("input:not(:checked)")].map((box) => box.value);
  const checked = () => [...legend.querySelectorAll("input:checked")].map((box) => box.value);
  const isSubset = state.classes.length > 0;
  const button = document.getElementById("only-classes");
  button.textContent = isSubset ? "Show all classes" : "Only these";
  button.onclick = () => only(isSubset || checked().length === map.classes.length ? [] : checked());
  document.getElementById("all-classes").onclick = () => toggle([]);
  document.getElementById("no-classes").onclick = () => toggle([...chosen]);
  find.oninput = () => {
    for (const label of legend.children) label.hidden = !label.title.toLowerCase().includes(find.value.toLowerCase());
  };
  document.getElementById("legend-card").querySelector(".marks")?.remove();
  document.getElementById("legend-card").append(
    element("div", { class: "marks hint" }, element("span", {}, "☆ class centre"), element("span", {}, "✧ without points near"), element("span", {}, "✕ wrong prediction"),
      element("span", { title: "Rows that are undecided between several classes would lie further out." }, "□ on the border of the map"), outline()),
  );
}

function outline() {
  const made = element("span", {}, "▱ region");
  made.style.color = REJECT;
  return made;
}
