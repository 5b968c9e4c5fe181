// What happened, and what to do where there is nothing to show. Text is only ever set as text.

/** An element with attributes and children; `on...` functions become listeners. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name.slice(2).toLowerCase(), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, String(value));
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Tell what happened, at the top of the page; `kind` is `info`, `done` or `error`. Errors stay until dismissed. */
export function notify(text, kind = "info") {
  const notice = element("div", { class: `notice ${kind}`, role: kind === "error" ? "alert" : null }, text);
  notice.append(element("button", { class: "quiet", "aria-label": "Dismiss", onclick: () => notice.remove() }, "×"));
  const place = document.getElementById("notices");
  for (const old of place.children) if (old.firstChild.textContent === text) old.remove();
  place.append(notice);
  if (kind !== "error") setTimeout(() => notice.remove(), 6000);
}

export function clearNotices() {
  document.getElementById("notices").replaceChildren();
}

/** Fill a place where there is nothing to show with what to do about it. `text` may be an element. */
export function showEmpty(place, title, text) {
  place.replaceChildren(element("div", { class: "empty" }, element("h2", {}, title), element("p", {}, text)));
}

/** Let people use the controls: they are served disabled, so that nothing is chosen or sent before a listener hears it. */
export function openControls() {
  document.getElementById("controls").disabled = false;
}
