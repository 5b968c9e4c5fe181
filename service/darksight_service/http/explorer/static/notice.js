// Messages to the user, and elements. Text is only ever set as text.

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

/** Show a message at the top of the page; `kind` is `info`, `done` or `error`. Errors stay until dismissed. */
export function notify(text, kind = "info") {
  const notice = element("div", { class: `notice ${kind}`, role: kind === "error" ? "alert" : null }, text);
  notice.append(element("button", { class: "quiet", "aria-label": "Dismiss", onclick: () => notice.remove() }, "×"));
  const notices = document.getElementById("notices");
  for (const old of notices.children) if (old.firstChild.textContent === text) old.remove();
  notices.append(notice);
  if (kind !== "error") setTimeout(() => notice.remove(), 6000);
}

export function clearNotices() {
  document.getElementById("notices").replaceChildren();
}

/** Say in a container that there is nothing to show and what to do. `text` may be an element. */
export function showEmpty(container, title, text) {
  container.replaceChildren(element("div", { class: "empty" }, element("h2", {}, title), element("p", {}, text)));
}

/** Enable the controls; they are disabled until the listeners are registered. */
export function openControls() {
  document.getElementById("controls").disabled = false;
}
