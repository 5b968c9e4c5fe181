// The review page: one point at a time, one key per label. A label is sent after a few seconds, so that it can be undone,
// and stays in this browser until the server confirms it.

import { getJson, postJson } from "./api.js";
import { count, fixed, percent, setText, stat, table, when } from "./figures.js";
import { element, notify, openControls, showEmpty } from "./notice.js";
import { classColour } from "./palette.js";
import { openPage } from "./shell.js";
import { preloadReference, referenceOf } from "./reference.js";
import { readState, writeState } from "./state.js";

const DEFAULTS = { stream: "audit" };
const STREAMS = {
  outliers: ["Outliers", "outliers, lowest p-value first"],
  doubtful: ["Doubtful", "predictions that are likely wrong, lowest confidence first"],
  certificate: ["For the certificate", "the accepted points of the random audit, which tell whether the certificate holds"],
  audit: ["Random audit", "points drawn at random, more often where errors are likely, that measure accuracy"],
};
const WAIT_MS = 4000;
const at = (id) => document.getElementById(id);
const page = await openPage();
const state = readState(DEFAULTS);
const key = `darksight:labels:${page.model}`;

let found = null;
let items = [];
/** Points that were labelled or skipped on this page. */
const seen = new Set();
/** Labels that the server has not confirmed, oldest first. */
let pending = readPending();
/** Labels of the running request, which can no longer be undone. */
let sending = [];
let timer = 0;

const asked = () => ({ model: page.model, version: page.version, stream: state.stream });
const current = () => items[0] || null;
const className = (number) => found.class_names[number] ?? String(number);
/** Whether every class is named by one digit, which is then its key. The keys of other classes are the ranks of their probabilities. */
const hasDigitNames = () => found.class_names.every((name) => /^[0-9]$/.test(name));
const keyOf = (number, rank) => (hasDigitNames() ? className(number) : String((rank + 1) % 10));

function readPending() {
  try {
    const kept = JSON.parse(localStorage.getItem(key) || "[]");
    return Array.isArray(kept) ? kept : [];
  } catch {
    return [];
  }
}

const mayUndo = () => pending.length > 0 && !sending.includes(pending.at(-1));

function keep() {
  if (pending.length) localStorage.setItem(key, JSON.stringify(pending));
  else localStorage.removeItem(key);
  at("undo").disabled = !mayUndo();
  const last = pending.at(-1);
  at("pending").textContent = last ? `“${last.text}” for ${last.prediction_id} is sent in a few seconds; press u to undo.` : "";
}

const load = () =>
  page.guard(async () => {
    found = await getJson("/api/review", asked());
    items = found.items.filter((item) => !seen.has(item.prediction_id));
    showAll();
    if (found.learned_score.is_learning) setTimeout(loadLearnedScore, 500);
  });

const loadLearnedScore = () =>
  page.guard(async () => {
    const { learned_score: score } = await getJson("/api/review/learned-score", asked());
    found.learned_score = score;
    showLearnedScore();
    if (score.is_learning) setTimeout(loadLearnedScore, 500);
    else await load();
  });

function showAll() {
  at("streams").replaceChildren(...Object.entries(STREAMS).map(([name, [title, hint]]) =>
    element("button", { id: `stream-${name}`, title: hint, "aria-pressed": String(name === state.stream), onclick: () => choose({ stream: name }) }, `${title} (${count(found.counts[name])})`)));
  at("used").textContent = found.points
    ? `${STREAMS[state.stream][1]}; from ${found.is_drawn ? "" : "the newest "}${count(found.points)} ${found.is_drawn ? "points that were drawn when they were stored" : "points"}, since ${when(found.oldest_ms)}${!found.is_drawn && found.points === found.max_points ? " (the maximum)" : ""}.`
    : "";
  at("class-list").replaceChildren(...found.class_names.map((name) => element("option", { value: name })));
  showItem();
  showQueue();
  showAudit();
  showLearnedScore();
}

function showItem() {
  const item = current();
  if (!item) {
    const total = found.points;
    showEmpty(at("item"), total ? "This stream is empty" : "There are no points to review",
      total ? "Choose another stream. The setting audit_rate says how many points are drawn for the audit." : "Send predictions with client.score(model, probs); they appear here within a second.");
    return;
  }
  const mayLabel = page.may("report");
  const picks = item.classes.map((number, rank) =>
    element("button", { class: rank < item.set_size ? "pick in-set" : "pick", disabled: !mayLabel, onclick: () => label(number) },
      element("kbd", {}, keyOf(number, rank)), element("span", { class: "swatch", style: `background:${classColour(number)}` }),
      element("span", { style: "flex:0 0 9em" }, className(number)),
      element("span", { class: "bar-track", style: "flex:1" }, element("span", { class: "bar-fill", style: `display:block;width:${100 * item.probs[rank]}%` })),
      element("span", { class: "number", style: "flex:0 0 5em;text-align:right" }, percent(item.probs[rank], 2))));
  const point = `/points?${new URLSearchParams({ model: page.model, name: item.prediction_id })}`;
  at("item").replaceChildren(
    element("div", { class: "stats" },
      stat(className(item.predicted), "predicted"), stat(percent(item.top, 2), "largest probability"), stat(fixed(item.p_value, 4), "p-value"),
      stat(item.decision === "ACCEPT" ? "accept" : item.reason.toLowerCase().replace("_", " "), "decision"),
      stat(item.chance === null ? "–" : percent(item.chance, 1), "P(correct), learned score"),
      ...(item.odds !== null ? [stat(percent(item.odds, 1), "odds to be drawn")] : [])),
    referenceOf(page.model, item) ?? "",
    element("p", {}, element("a", { class: "mono", href: point }, item.prediction_id), ` · ${when(item.received_ms)}`),
    ...(item.set_size ? [element("p", { id: "prediction-set" }, element("strong", {}, `One of ${setText(item, className)}`), found.set_coverage ? ` with ${percent(found.set_coverage, 0)}: press the marked keys first.` : "")] : []),
    ...(item.classes.length ? picks : [element("p", { class: "hint" }, "No probabilities are stored; type the class.")]),
    ...(mayLabel ? [] : [element("p", { class: "hint" }, "Labelling needs a token with scope report.")]),
  );
  for (const next of items.slice(1, 3)) preloadReference(page.model, next);
}

function showQueue() {
  const rows = items.slice(0, 12).map((item) => {
    const change = item.softmax_rank - item.learned_rank;
    const arrow = change === 0 ? "=" : change > 0 ? `▲ ${count(change)}` : `▼ ${count(-change)}`;
    return { cells: [element("span", { class: "mono" }, item.prediction_id), className(item.predicted), percent(item.top, 1), fixed(item.p_value, 4), item.decision.toLowerCase(), count(item.softmax_rank), count(item.learned_rank), arrow] };
  });
  const hint = "Ranks among all unlabelled points, lowest confidence first, by max-softmax and by the learned score, and their difference.";
  at("queue").replaceChildren(table(["prediction id", "predicted", "p₁", "p-value", "decision", "softmax rank", "learned rank", "change"], rows, { numbers: [2, 3, 5, 6, 7] }), element("p", { class: "hint" }, hint));
}

function showAudit() {
  const { audit } = found;
  const line = (label, part) => ({ cells: [label, part.value === null ? "–" : percent(part.value, 1), element("span", { class: "whole" }, part.value === null ? "–" : `${percent(part.low)} – ${percent(part.high)}`), count(part.labels)] });
  at("audit").replaceChildren(
    table(["", "accuracy", "95% interval", "labels"], [
      line("all", audit.all), line("accepted", audit.accepted),
      ...audit.classes.map((each) => line(`accepted, predicted ${each.name}`, each)),
      ...audit.segments.map((each) => line(`accepted, ${each.name}`, each)),
    ], { numbers: [1, 2, 3] }),
    element("p", { class: "hint" },
      `${count(audit.labelled)} of ${count(audit.drawn)} drawn points have a label. The probabilities of all other points count too. ` +
      "Intervals hold however often they are read, those of all classes at once, and those of all segments. A drawn point without a label may be right or wrong: label all that are drawn, in their order. " +
      "Labels of the other streams are not used here, because they were selected where errors are likely."),
    element("p", { class: "hint" }, certificateText(found.certificate)));
}

function certificateText({ promised, verdict, labels_needed: needed, log_evidence: evidence, threshold }) {
  if (promised === null) return "There is no certificate of accuracy, or a policy override is in force.";
  const certificate = `The certificate of ${percent(promised)} for accepted points`;
  if (verdict === "broken") return `${certificate} is broken: the evidence against it is ${fixed(evidence, 1)}, ${fixed(threshold, 1)} is enough.`;
  if (verdict === "kept") return `${certificate} is kept.`;
  if (needed === null) return `${certificate} is open, and no number of labels settles it while so many drawn points stay without one.`;
  return `${certificate} is open: with about ${count(needed)} more labels of the stream for the certificate, an accuracy 3 points lower is found with a probability of 80%.`;
}

function showLearnedScore() {
  const { learned_score: score } = found;
  if (score.labels === null) {
    at("learned-score").replaceChildren(element("p", { class: "hint" }, "Learning…"));
    return;
  }
  const figure = (part) => (part ? [fixed(part.auroc, 3), part.intervals.auroc ? `${fixed(part.intervals.auroc[0], 3)} – ${fixed(part.intervals.auroc[1], 3)}` : "–", fixed(1000 * part.augrc, 2)] : ["–", "–", "–"]);
  const gain = score.gain === null ? "" : ` Gain in AUGRC × 1000: ${fixed(1000 * score.gain, 2)} ± ${fixed(1000 * score.gain_error, 2)}.`;
  at("learned-score").replaceChildren(
    element("div", { class: "stats" }, stat(element("span", { id: "label-count", class: "figure" }, count(score.labels)), "labels used"), stat(count(score.errors), "errors among them")),
    element("p", { class: "verdict" }, score.summary + (score.is_learning ? " Updating with new labels…" : "")),
    table(["", "AUROC", "95%", "AUGRC"], [{ cells: ["max-softmax", ...figure(score.softmax)] }, { cells: ["learned", ...figure(score.learned)] }], { numbers: [1, 2, 3] }),
    element("p", { class: "hint" }, `Cross-validated on at most the newest ${count(found.max_labels)} labels.${gain} With 100 to 300 labels hardly any score beats max-softmax reliably, so the learned score departs from its order only if the improvement exceeds noise. If labels were selected where errors are likely, P(correct) is too low for ordinary traffic; the order still holds.`),
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

/** Send all pending labels. Unconfirmed ones are sent again; a label that is sent twice is stored once. */
async function send() {
  clearTimeout(timer);
  if (sending.length || !pending.length) return;
  const batch = (sending = pending.slice(0, 1000));
  try {
    await postJson(`/v1/models/${encodeURIComponent(page.model)}/outcomes`, { outcomes: batch.map(({ prediction_id, label: number, observed_ms }) => ({ prediction_id, label: number, observed_at: new Date(observed_ms).toISOString() })) });
    pending = pending.filter((each) => !batch.includes(each));
    if (!pending.length || items.length < 5) setTimeout(load, 0);
  } catch (error) {
    if (error.status === 400 || error.status === 404) {
      pending = pending.filter((each) => !batch.includes(each));
      notify(`Not recorded: ${error.message}`, "error");
    } else {
      notify(`${error.message} ${count(pending.length)} labels are kept in this browser and sent again.`, "error");
      timer = setTimeout(send, WAIT_MS);
    }
  } finally {
    sending = [];
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
    const number = hasDigitNames() ? found.class_names.indexOf(event.key) : item.classes[(Number(event.key) + 9) % 10];
    if (number >= 0) label(number);
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
addEventListener("popstate", () => location.reload());

keep();
await load();
openControls();
if (pending.length) send();
