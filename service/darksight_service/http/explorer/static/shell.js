// Shared by all pages: session, pickers of model and version, navigation.

import { ApiError, getJson, postJson, setCsrf } from "./api.js";
import { element, notify, showEmpty } from "./notice.js";
import { setColours } from "./palette.js";

/**
 * Load session and models. `page.model` and `page.version` come from the URL; by default they are the first model and its
 * active version. `page.may("admin")` tells whether the session has a scope; `page.guard(work)` runs async work and shows
 * its error.
 */
export async function openPage() {
  const main = document.getElementById("main");
  const page = { model: "", version: "", models: [], session: null, guard, may: () => false };
  try {
    const [session, { models, class_colours: classes, grades }] = await Promise.all([getJson("/api/session"), getJson("/api/models")]);
    setCsrf(session.csrf);
    setColours(classes, grades);
    Object.assign(page, { session, models });
  } catch (error) {
    if (error.status === 401) location.replace(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
    showEmpty(main, "The explorer is unavailable", error.message);
    throw error;
  }
  page.may = (scope) => page.session.scopes.includes(scope);
  showSession(page.session);
  choose(page);
  if (!page.model) {
    showEmpty(main, "No model is deployed", "Fit a map with “darksight fit”, then serve it: darksight serve --model NAME=BUNDLE");
    throw new ApiError("no model is deployed");
  }
  return page;
}

/** Run async work and show its error; returns the result, or undefined after an error. */
export async function guard(work) {
  try {
    return await work();
  } catch (error) {
    if (error.name === "AbortError") return undefined;
    if (error.status === 401) location.reload();
    if (!(error instanceof ApiError)) console.error(error);
    notify(error instanceof ApiError ? error.message : "Unexpected error on this page; reload it.", "error");
    return undefined;
  }
}

function choose(page) {
  const query = new URLSearchParams(location.search);
  const asked = query.get("model");
  const model = page.models.find((each) => each.name === asked) || page.models[0];
  if (asked && model && model.name !== asked) notify(`There is no model ${asked}; showing ${model.name}.`, "error");
  if (!model) return;
  const version = query.get("version") || "";
  const known = version && model.versions.find((each) => each.version.startsWith(version));
  if (version && !known) notify(`Model ${model.name} has no version ${version}; showing the active one.`, "error");
  page.model = model.name;
  page.version = known ? known.version : model.active;
  page.isActive = page.version === model.active;
  fillPickers(page, model);
  keepInLinks(page, model);
  document.addEventListener("darksight:address", () => keepInLinks(page, model));
}

function fillPickers(page, model) {
  const models = document.getElementById("model-picker");
  const versions = document.getElementById("version-picker");
  models.replaceChildren(
    ...page.models.map((each) => element("option", { value: each.name, selected: each.name === page.model }, each.name)),
  );
  versions.replaceChildren(
    ...model.versions.map(({ version }) => {
      const role = version === model.active ? " (active)" : version === model.shadow ? " (shadow)" : "";
      return element("option", { value: version, selected: version === page.version }, version.slice(0, 12) + role);
    }),
  );
  models.addEventListener("change", () => location.assign(addressOf(location.pathname, models.value, "")));
  versions.addEventListener("change", () => {
    const version = versions.value === model.active ? "" : versions.value.slice(0, 12);
    location.assign(addressOf(location.pathname, page.model, version));
  });
}

function addressOf(path, model, version) {
  const query = new URLSearchParams({ model });
  if (version) query.set("version", version);
  return `${path}?${query}`;
}

function keepInLinks(page, model) {
  const version = page.version === model.active ? "" : page.version.slice(0, 12);
  for (const link of document.querySelectorAll("nav a[data-page]")) {
    link.href = addressOf(`/${link.dataset.page}`, page.model, version);
  }
}

function showSession(session) {
  document.getElementById("who").textContent = session.name || "";
  const button = document.getElementById("log-out");
  button.hidden = !session.needs_login;
  button.addEventListener("click", () =>
    guard(async () => {
      // A user of an OpenID provider logs out there, too.
      const { url } = await postJson("/api/logout");
      location.assign(url || "/login");
    }),
  );
}
