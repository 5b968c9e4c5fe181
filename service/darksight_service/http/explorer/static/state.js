// The state of a page is in its URL: every view can be linked to, and "back" returns to the previous view.

/** State from the URL over defaults; the type of a default decides how a value is parsed. */
export function readState(defaults) {
  const query = new URLSearchParams(location.search);
  const state = {};
  for (const [name, initial] of Object.entries(defaults)) {
    const text = query.get(name);
    if (text === null) state[name] = Array.isArray(initial) ? [...initial] : initial;
    else if (typeof initial === "number") state[name] = Number.isFinite(Number(text)) ? Number(text) : initial;
    else if (typeof initial === "boolean") state[name] = text === "1";
    else if (Array.isArray(initial)) state[name] = text === "" ? [] : text.split(",");
    else state[name] = text;
  }
  return state;
}

/** Write the values that differ from the defaults to the URL; `replace` adds no history entry. */
export function writeState(state, defaults, { replace = false } = {}) {
  const query = new URLSearchParams(location.search);
  for (const [name, initial] of Object.entries(defaults)) {
    const text = asText(state[name]);
    if (text === asText(initial)) query.delete(name);
    else query.set(name, text);
  }
  const address = `${location.pathname}?${query}`.replace(/\?$/, "");
  if (address === location.pathname + location.search) return;
  history[replace ? "replaceState" : "pushState"](null, "", address);
  document.dispatchEvent(new Event("darksight:address"));
}

function asText(value) {
  if (typeof value === "boolean") return value ? "1" : "0";
  return Array.isArray(value) ? value.join(",") : String(value);
}
