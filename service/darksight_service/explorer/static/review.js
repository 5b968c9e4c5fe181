// The review queue: a point at a time, one key for a label. A label waits a few seconds, so that it can be taken back,
// and stays in this browser until the server says that it is recorded.

import { getJson, postJson } from "./api.js";
import { count, fixed, percent, stat, table, when } from "./figures.js";
import { element, notify, openControls, showEmpty } from "./notice.js";
import { classColour } from "./palette.js";
import { openPage } from "./shell.js";
import { readState, writeState } from "./state.js";

const DEFAULTS = { stream: "audit", rate: "0.05" };
const STREAMS = {
  outliers: ["Outliers", "what the classifier rarely produces, the least usual first"],
  doubtful: ["Doubtful", "what is likely wrong, the least sure first"],
  audit: ["Random audit", "a random draw, accepted points included: the one that measures accuracy"],
};
const WAIT_MS = 4000;
const at = (id) => document.getElementById(id);
const page = await openPage();
const state = readState(DEFAULTS);
const key = `darksight:labels:${page.model}`;

let found = null;
let items = [];
/** Points that are not shown again on this page: labelled here, or skipped. */
const seen = new Set();
/** Labels that the server has not confirmed, the oldest first. */
let pending = readPending();
/** Those of them that are on their way, and can no longer be taken back. */
let underway = [];
let timer = 0;

const asked = () => ({ model: page.model, version: page.version, stream: state.stream, rate: state.rate });
const current = () => items[0] || null;
const className = (number) => found.class_names[number] ?? String(number);

function readPending() {
  try {
    const kept = JSON.parse(localStorage.getItem(key) || "[]");
    return Array.isArray(kept) ? kept : [];
  } catch {
    return [];
  }
}

const mayUndo = () => pending.length > 0 && !underway.includes(pending.at(-1));

function keep() {
  if (pending.length) localStorage.setItem(key, JSON.stringify(pending));
  else localStorage.removeItem(key);
  at("undo").disabled = !mayUndo();
  const last = pending.at(-1);
  at("pending").textContent = last ? `“${last.text}” for ${last.prediction_id} is sent in a few seconds; u takes it back.` : "";
}

const load = () =>
  page.guard(async () => {
    found = await getJson("/api/review", asked());
    items = found.items.filter((item) => !seen.has(item.prediction_id));
    showAll();
    if (found.lesson.is_learning) setTimeout(loadLesson, 500);
  });

const loadLesson = () =>
  page.guard(async () => {
    const { lesson } = await getJson("/api/review/lesson", asked());
    found.lesson = lesson;
    showLesson();
    if (lesson.is_learning) setTimeout(loadLesson, 500);
    else await load();
  });

function showAll() {
  at("streams").replaceChildren(...Object.entries(STREAMS).map(([name, [word, hint]]) =>
    element("button", { id: `stream-${name}`, title: hint, "aria-pressed": String(name === state.stream), onclick: () => choose({ stream: name }) }, `${word} (${count(found.counts[name])})`)));
  at("used").textContent = found.looked_at
    ? `${STREAMS[state.stream][1]}; among the newest ${count(found.looked_at)} points since ${when(found.oldest_ms)}${found.looked_at === found.most ? " (the most that are looked at)" : ""}.`
    : "";
  at("class-list").replaceChildren(...found.class_names.map((name) => element("option", { value: name })));
  showItem();
  showQueue();
  showAudit();
  showLesson();
}

function showItem() {
  const item = current();
  if (!item) {
    const total = found.looked_at;
    showEmpty(at("item"), total ? "Nothing waits in this stream" : "There are no points to review",
      total ? "Choose another stream, or raise the audit rate: a higher rate keeps the points drawn so far and adds others." : "Send predictions with client.score(model, probs); points wait here a second later.");
    return;
  }
  const mayLabel = page.may("report");
  const picks = item.classes.map((number, place) =>
    element("button", { class: "pick", disabled: !mayLabel, onclick: () => label(number) },
      element("kbd", {}, place < 9 ? String(place + 1) : "0"), element("span", { class: "swatch", style: `background:${classColour(number)}` }),
      element("span", { style: "flex:0 0 9em" }, className(number)),
      element("span", { class: "bar-track", style: "flex:1" }, element("span", { class: "bar-fill", style: `display:block;width:${100 * item.probs[place]}%` })),
      element("span", { class: "number", style: "flex:0 0 5em;text-align:right" }, percent(item.probs[place], 2))));
  const point = `/points?${new URLSearchParams({ model: page.model, name: item.prediction_id })}`;
  at("item").replaceChildren(
    element("div", { class: "stats" },
      stat(className(item.predicted), "predicted"), stat(percent(item.top, 2), "largest probability"), stat(fixed(item.p_value, 4), "p-value"),
      stat(item.decision === "ACCEPT" ? "accept" : item.reason.toLowerCase().replace("_", " "), "decision"),
      stat(item.chance === null ? "–" : percent(item.chance, 1), "P(correct), learned")),
    element("p", {}, element("a", { class: "mono", href: point }, item.prediction_id), ` · ${when(item.received_ms)}`),
    ...(item.classes.length ? picks : [element("p", { class: "hint" }, "The store keeps no probabilities; type the class.")]),
    ...(mayLabel ? [] : [element("p", { class: "hint" }, "Labelling takes a token with the scope report.")]),
  );
}

function showQueue() {
  const rows = items.slice(0, 12).map((item) => {
    const change = item.softmax_rank - item.learned_rank;
    const arrow = change === 0 ? "=" : change > 0 ? `▲ ${count(change)}` : `▼ ${count(-change)}`;
    return { cells: [element("span", { class: "mono" }, item.prediction_id), className(item.predicted), percent(item.top, 1), fixed(item.p_value, 4), item.decision.toLowerCase(), count(item.softmax_rank), count(item.learned_rank), arrow] };
  });
  const hint = "Places among all unlabelled points, the least sure first: by max-softmax, by the learned score, and how far labels have moved the point forward.";
  at("queue").replaceChildren(table(["prediction id", "predicted", "p₁", "p-value", "decision", "by softmax", "learned", "moved"], rows, { numbers: [2, 3, 5, 6, 7] }), element("p", { class: "hint" }, hint));
}

function showAudit() {
  const { audit } = found;
  const line = (word, part) => ({ cells: [word, part.value === null ? "–" : percent(part.value, 1), element("span", { class: "whole" }, part.value === null ? "–" : `${percent(part.low)} – ${percent(part.high)}`), element("span", { class: "whole" }, `${count(part.right)} of ${count(part.labelled)}`)] });
  const powered = audit.all.powered;
  at("audit").replaceChildren(
    table(["", "accuracy", "95% interval", "right"], [line("all", audit.all), line("accepted", audit.accepted)], { numbers: [1, 2, 3] }),
    element("p", { class: "hint" },
      `${count(audit.done)} of ${count(audit.drawn)} drawn points are worked through; each point had odds of ${percent(audit.rate, 0)}. ` +
      (audit.all.skipped ? `${count(audit.all.skipped)} were skipped: the interval counts them as wrong and as right. ` : "") +
      (powered ? `Sharpened by the confidence of the others: ${percent(powered[0], 1)} (${percent(powered[1])} – ${percent(powered[2])}). ` : "") +
      "Labels of the other streams do not count here: they were picked where errors are likely."));
}

function showLesson() {
  const { lesson } = found;
  if (lesson.labels === null) {
    at("lesson").replaceChildren(element("p", { class: "hint" }, "Learning…"));
    return;
  }
  const figure = (part) => (part ? [fixed(part.auroc, 3), part.intervals.auroc ? `${fixed(part.intervals.auroc[0], 3)} – ${fixed(part.intervals.auroc[1], 3)}` : "–", fixed(1000 * part.augrc, 2)] : ["–", "–", "–"]);
  const gain = lesson.gain === null ? "" : ` Gain in AUGRC × 1000: ${fixed(1000 * lesson.gain, 2)} ± ${fixed(1000 * lesson.gain_error, 2)}.`;
  at("lesson").replaceChildren(
    element("div", { class: "stats" }, stat(element("span", { id: "label-count", class: "figure" }, count(lesson.labels)), "labels learned from"), stat(count(lesson.errors), "of them errors")),
    element("p", { class: "verdict" }, lesson.verdict + (lesson.is_learning ? " (learning from new labels…)" : "")),
    table(["", "AUROC", "95%", "AUGRC"], [{ cells: ["max-softmax", ...figure(lesson.softmax)] }, { cells: ["learned", ...figure(lesson.learned)] }], { numbers: [1, 2, 3] }),
    element("p", { class: "hint" }, `By cross-validation on the newest ${count(found.most_labels)} labels at most, on rows the fit has not seen.${gain} With 100 to 300 labels hardly anything beats max-softmax reliably, so the learned score leaves its order only if that pays beyond noise. Labels picked where errors are likely make P(correct) too low for ordinary traffic; the order is what counts.`),
  );
}

function label(number) {
  const item = current();
  if (!item || !page.may("report")) return;
  send();
  pending.push({ prediction_id: item.prediction_id, label: number, observed_ms: Date.now(), text: className(number) });
  seen.add(item.prediction_id);
  items.shift();
  keep();
  clearTimeout(timer);
  timer = setTimeout(send, WAIT_MS);
  showItem();
  showQueue();
}

function skip() {
  const item = current();
  if (!item) return;
  seen.add(item.prediction_id);
  items.shift();
  if (!items.length) load();
  showItem();
  showQueue();
}

function undo() {
  if (!mayUndo()) return;
  const taken = pending.pop();
  seen.delete(taken.prediction_id);
  keep();
  load();
}

/** Send everything that waits; what is not confirmed stays, and is sent again: the same label twice is stored once. */
async function send() {
  clearTimeout(timer);
  if (underway.length || !pending.length) return;
  const batch = (underway = pending.slice(0, 1000));
  try {
    await postJson("/api/labels", { model: page.model, labels: batch.map(({ prediction_id, label: number, observed_ms }) => ({ prediction_id, label: number, observed_ms })) });
    pending = pending.filter((each) => !batch.includes(each));
    if (!pending.length || items.length < 5) setTimeout(load, 0);
  } catch (error) {
    if (error.status === 400 || error.status === 404) {
      pending = pending.filter((each) => !batch.includes(each));
      notify(`Not recorded: ${error.message}`, "error");
    } else {
      notify(`${error.message} ${count(pending.length)} labels wait in this browser and are sent again.`, "error");
      timer = setTimeout(send, WAIT_MS);
    }
  } finally {
    underway = [];
    keep();
  }
}

function choose(change) {
  Object.assign(state, change);
  writeState(state, DEFAULTS);
  load();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const item = current();
  if (/^[0-9]$/.test(event.key) && item) {
    const place = event.key === "0" ? 9 : Number(event.key) - 1;
    if (place < item.classes.length) label(item.classes[place]);
  } else if (event.key === "s") skip();
  else if (event.key === "u") undo();
  else if (event.key === "/") {
    event.preventDefault();
    at("class-name").focus();
  }
});
at("typed").addEventListener("submit", (event) => {
  event.preventDefault();
  const number = found.class_names.indexOf(at("class-name").value.trim());
  if (number < 0) {
    notify(`There is no class “${at("class-name").value}”.`, "error");
    return;
  }
  label(number);
  at("class-name").value = "";
  at("class-name").blur();
});
at("skip").addEventListener("click", skip);
at("undo").addEventListener("click", undo);
at("rate").value = state.rate;
at("rate").addEventListener("change", () => choose({ rate: at("rate").value }));
addEventListener("popstate", () => location.reload());

keep();
await load();
openControls();
if (pending.length) send();
