// The gate: scores side by side, a threshold with what it promises, and putting it into force.

import { getJson, postJson } from "./api.js";
import { count, fixed, later, percent, spanOf, spanOptions, stat, table, when } from "./figures.js";
import { element, notify, openControls, showEmpty } from "./notice.js";
import { classColour } from "./palette.js";
import { draw } from "./plot.js";
import { openPage } from "./shell.js";
import { readState, writeState } from "./state.js";

const DEFAULTS = { span: "30d", since: 0, until: 0, labels: "all", view: "accuracy", alpha: "", threshold: "", accuracy: 0.99, delta: "0.05" };
const NAMES = {
  msp: "max-softmax", entropy: "entropy", margin: "margin", doctor: "Doctor", gen: "GEN", log_density: "log P(y; θ)",
  log_kde: "log KDE", outlier_score: "outlier_score", learned: "learned (cross-fitted)",
};
const at = (id) => document.getElementById(id);

const page = await openPage();
const state = readState(DEFAULTS);
let found = null;

const asked = () => ({ model: page.model, version: page.version, labels: state.labels, ...spanOf(state) });
const tried = () => ({ alpha: state.alpha, threshold: state.threshold });

function show() {
  const { used, lines, gate } = found;
  at("used").textContent =
    `${count(used.labels)} labelled points (the newest ${count(used.most)} at most), ${count(used.errors)} of them wrong` +
    (used.left_out ? `; ${count(used.left_out)} without a score left out.` : ".");
  const hasLabels = used.labels > 0;
  at("nothing").hidden = hasLabels;
  at("curves-card").hidden = at("scores-card").hidden = !hasLabels;
  at("certificate").hidden = !hasLabels;
  if (!hasLabels) {
    showEmpty(
      at("nothing"),
      state.labels === "audit" ? "The random audit has no labels yet" : "No point in this time has a label",
      element("span", {}, "Report what was right with ", element("code", {}, "client.report(model, prediction_ids, labels)"),
        ", or label points yourself on the ", element("a", { href: `/review?model=${encodeURIComponent(page.model)}` }, "review page"), "."),
    );
  } else if (lines) {
    drawCurves();
    showScores();
  } else at("scores").replaceChildren(element("p", { class: "hint" }, "Comparing scores…"));
  const reject = gate.reject;
  at("sliding").hidden = !reject || !hasLabels;
  at("rule-missing").hidden = Boolean(reject);
  if (!reject) {
    at("rule-missing").replaceChildren(
      element("p", {}, "This bundle has no reject score, so there is no threshold to set. Give it one, then deploy it: ",
        element("code", {}, "darksight calibrate BUNDLE LABELLED --coverage 0.95 --out GATED")));
  }
  const certified = found.is_certified ? "certified as it stands in the bundle" : "not certified";
  at("score-line").textContent = reject
    ? `In force: accept if ${NAMES[reject.score] || reject.score} > ${short(reject.threshold)}; ${outlierText(gate)}; ${certified}. `
      + "Only this score can be cut here; another one takes “darksight calibrate --score”."
    : `In force: ${outlierText(gate)}.`;
  showSlider();
  return hasLabels;
}

const outlierText = (gate) => (gate.outlier ? `outliers at α = ${gate.outlier.alpha}` : "no outlier rule");
const short = (value) => (value === "-inf" ? "−∞" : fixed(value, 3));

function drawCurves() {
  const risk = state.view === "risk";
  const value = (accuracy) => (risk ? accuracy.map((each) => 1 - each) : accuracy);
  const traces = found.lines.map((line, number) => ({
    type: "scatter", mode: "lines", name: NAMES[line.name] || line.name, x: line.coverage, y: value(line.accuracy),
    line: { color: classColour(number), width: line.name === "msp" ? 3 : 1.6, dash: line.name === "msp" ? "solid" : ["solid", "dot", "dash"][number % 3], shape: "hv" },
    hovertemplate: `${NAMES[line.name] || line.name}: %{y:.2%} at %{x:.0%} kept<extra></extra>`,
  }));
  const rate = found.used.errors / found.used.labels;
  const oracle = Array.from({ length: 61 }, (_, step) => (step + 1) / 61);
  traces.push({
    type: "scatter", mode: "lines", name: "oracle", x: oracle, y: value(oracle.map((kept) => Math.min(1, (1 - rate) / kept))),
    line: { color: "#98A1AD", width: 1.2, dash: "dashdot" }, hoverinfo: "skip",
  });
  return draw(at("curves"), traces, {
    xaxis: { title: { text: "share of rows kept" }, tickformat: ".0%", range: [0, 1] },
    yaxis: { title: { text: risk ? "share wrong among kept" : "accuracy of kept", standoff: 12 }, tickformat: ".1%", automargin: false },
    legend: { orientation: "v", font: { size: 11 } }, margin: { l: 76, r: 8, t: 8, b: 44 },
  }, { label: `${risk ? "Risk" : "Accuracy"} against coverage of ${found.lines.length} scores on ${found.used.labels} labelled points` });
}

function showScores() {
  const rows = found.lines.map((line, number) => {
    const swatch = element("span", { class: "swatch", style: `background:${classColour(number)}` });
    const auroc = line.intervals.auroc;
    const gain = line.gain === null || line.name === "msp" ? "–" : `${(1000 * line.gain).toFixed(2)} ± ${(1000 * line.gain_error).toFixed(2)}`;
    return {
      cells: [
        element("span", {}, swatch, NAMES[line.name] || line.name),
        element("span", { title: auroc ? `95% interval ${fixed(auroc[0])} to ${fixed(auroc[1])}` : "" }, fixed(line.auroc)),
        fixed(1000 * line.augrc, 2),
        element("span", { class: "whole" }, gain),
      ],
    };
  });
  const hint = "AUGRC × 1000: the lower, the fewer errors are kept. Gain over max-softmax ± its standard error: below two of these it is noise.";
  at("scores").replaceChildren(table(["score", "AUROC", "AUGRC", "gain"], rows, { numbers: [1, 2, 3] }), element("p", { class: "hint" }, hint));
}

function showSlider() {
  const { steps, gate } = found;
  if (!gate.reject) return;
  const slider = at("threshold");
  slider.max = String(steps.threshold.length - 1);
  const wanted = state.threshold === "" ? Number(gate.reject.threshold) : Number(state.threshold);
  const values = steps.threshold.map(Number);
  let place = values.findIndex((each) => each > wanted);
  place = place < 0 ? values.length - 1 : Math.max(0, place - 1);
  slider.value = String(place);
  showReading(place, wanted);
}

function showReading(place, wanted) {
  const { steps } = found;
  const kept = steps.accepted[place];
  const accuracy = kept ? 1 - steps.wrong[place] / kept : null;
  at("threshold-value").textContent = short(Number.isFinite(wanted) ? wanted : "-inf");
  at("threshold").setAttribute("aria-valuetext", `${short(Number.isFinite(wanted) ? wanted : "-inf")}, keeps ${percent(kept / steps.rows)}`);
  at("reading").replaceChildren(
    stat(percent(kept / steps.rows), "kept", "share of labelled points that all rules accept, regions included"),
    stat(percent(accuracy, 2), "accuracy of kept"),
    stat(`${percent(steps.low[place])} – ${percent(steps.high[place])}`, "95% interval", "exact, for a threshold fixed before looking at these labels"),
    stat(count(steps.wrong[place]), "errors kept"),
    stat(count(kept), "labelled points kept"),
  );
}

const loadCertificate = () =>
  page.guard(async () => {
    const { certificate } = await getJson("/api/gate/certificate", { ...asked(), ...tried(), threshold: "", accuracy: state.accuracy, delta: state.delta });
    const place = at("certificate");
    if (!certificate) {
      place.replaceChildren();
      return;
    }
    const { threshold, coverage, picked } = certificate;
    const goal = `${percent(state.accuracy)} accuracy with ${percent(1 - Number(state.delta), 0)} confidence`;
    if (!threshold.feasible) {
      const more = threshold.labels_needed === null
        ? "At the error rates seen here more labels would not help: no part of the points is that accurate. Ask for less."
        : `It would take about ${count(threshold.labels_needed)} labels at the error rates seen here; there are ${count(found.used.labels)}.`;
      place.replaceChildren(element("div", { class: "verdict bad" }, element("b", {}, `No threshold can be certified for ${goal}. `), more));
    } else {
      const use = element("button", { id: "use-certified", type: "button", onclick: () => setThreshold(threshold.value) }, "Use it");
      place.replaceChildren(
        element("div", { class: "verdict good" },
          element("b", {}, `Certified for ${goal}: ${threshold.value === "-inf" ? "everything that is no outlier" : `accept above ${short(threshold.value)}`}, which keeps ${percent(coverage)}. `), use));
    }
    const words = "Learn-then-Test on these labels; it holds while traffic stays as it is, and only if the labels are a random draw (choose “random audit only” if some were picked by hand). ";
    const warning = picked === null ? "" : `A threshold picked by looking at the curve is not certified: the loosest that measures ${percent(state.accuracy)} here is ${short(picked)}, and such a pick breaks its promise about every other time.`;
    place.append(element("p", { class: "hint" }, words + warning));
  });

const loadDryRun = () =>
  page.guard(async () => {
    const run = await getJson("/api/gate/dry-run", { model: page.model, ...spanOf(state), ...tried() });
    if (!run.points) {
      at("dry-run").replaceChildren(element("p", { class: "hint" }, "No stored points in this time to try it on."));
      return;
    }
    const line = (word, key) => ({ cells: [word, count(run.before[key]), count(run.after[key])] });
    const share = (part) => percent(part.points ? part.accepted / part.points : null);
    at("dry-run").replaceChildren(
      table(["", "as decided", "with this"], [
        { cells: ["accepted", share(run.before), share(run.after)] },
        line("outliers", "outliers"), line("low confidence", "low_confidence"), line("in a region", "regions"),
        { cells: ["accepted and known to be wrong", ...[run.before, run.after].map((part) => count(part.accepted_labelled - part.accepted_correct))] },
      ], { numbers: [1, 2] }),
      element("p", { class: "hint" }, `On ${count(run.before.points)} stored points of the active version since ${when(run.since_ms)} (the newest 50,000 or so).`),
    );
  });

const loadHistory = () =>
  page.guard(async () => {
    const { changes } = await getJson("/api/gate/history", { model: page.model });
    if (!changes.length) {
      at("history").replaceChildren(element("p", { class: "hint" }, "The gate is as its bundle brought it: nobody has changed it."));
      return;
    }
    const text = (value, none) => (value === null ? none : String(value));
    at("history").replaceChildren(
      table(["when", "who", "α", "threshold", "why", "version"], changes.map((change) => ({
        cells: [when(change.changed_ms), change.author || "–", text(change.alpha, "as in the bundle"),
          change.threshold === null ? "as in the bundle" : short(change.threshold), change.comment, element("span", { class: "mono" }, change.version.slice(0, 12))],
      })), { numbers: [2, 3] }));
  });

const load = () =>
  page.guard(async () => {
    found = await getJson("/api/gate", { ...asked(), ...tried() });
    if (found.is_computing) setTimeout(loadLines, 400);
    if (show()) await loadCertificate();
  });

/** Curves and figures take a second after new labels; everything else is there at once. */
const loadLines = () =>
  page.guard(async () => {
    const newer = await getJson("/api/gate", { ...asked(), ...tried() });
    if (newer.is_computing) setTimeout(loadLines, 400);
    found.lines = newer.lines;
    if (!found.lines) return;
    drawCurves();
    showScores();
  });

const changed = () => writeState(state, DEFAULTS, { replace: true });
const dryRunLater = later(loadDryRun);

function setThreshold(value) {
  state.threshold = String(value);
  changed();
  showSlider();
  dryRunLater();
}

async function apply(policy) {
  const comment = at("comment").value.trim();
  if (!comment) {
    notify("Say why: the comment goes into the audit trail.", "error");
    at("comment").focus();
    return;
  }
  await page.guard(async () => {
    await postJson("/api/gate/policy", { model: page.model, version: page.version, comment, author: at("author").value, ...policy });
    notify("The gate is changed; all workers follow within a second.", "done");
    at("comment").value = "";
    state.threshold = "";
    state.alpha = "";
    changed();
    await load();
    setAlpha();
    await Promise.all([loadHistory(), loadDryRun()]);
  });
}

/** What is in force and what was tried, as a whole policy: what is not said would go back to the bundle. */
function wholePolicy() {
  const gate = found.gate;
  const alpha = state.alpha !== "" ? Number(state.alpha) : gate.outlier ? gate.outlier.alpha : 0;
  const threshold = !gate.reject ? null : state.threshold !== "" ? state.threshold : String(gate.reject.threshold);
  return { alpha, threshold, fail_open: gate.fail_open };
}

function setAlpha() {
  if (found) at("alpha").value = state.alpha !== "" ? state.alpha : found.gate.outlier ? String(found.gate.outlier.alpha) : "0";
}

spanOptions(at("span"), state, ["24h", "7d", "30d"]);
at("labels").value = state.labels;
at("accuracy").value = String(state.accuracy);
at("delta").value = state.delta;
at("author-field").hidden = Boolean(page.session.name);
const mayApply = page.may("admin") && page.isActive;
at("apply-button").disabled = at("reset-button").disabled = !mayApply;
at("apply-hint").textContent = mayApply
  ? "A gate that differs from the bundle's is no longer certified by the bundle."
  : page.may("admin") ? "A policy is set for the active version; another one is shown." : "Changing the gate takes a token with the scope admin.";

at("span").addEventListener("change", () => { Object.assign(state, { span: at("span").value, since: 0, until: 0 }); changed(); location.reload(); });
at("labels").addEventListener("change", () => { state.labels = at("labels").value; changed(); location.reload(); });
at("threshold").addEventListener("input", () => {
  const place = Number(at("threshold").value);
  state.threshold = String(found.steps.threshold[place]);
  showReading(place, Number(state.threshold));
  changed();
  dryRunLater();
});
at("alpha").addEventListener("change", () => { state.alpha = at("alpha").value; changed(); load(); loadDryRun(); });
at("accuracy").addEventListener("change", () => { state.accuracy = Number(at("accuracy").value); changed(); loadCertificate(); });
at("delta").addEventListener("change", () => { state.delta = at("delta").value; changed(); loadCertificate(); });
for (const view of ["accuracy", "risk"]) {
  at(`show-${view}`).setAttribute("aria-pressed", String(state.view === view));
  at(`show-${view}`).addEventListener("click", () => {
    state.view = view;
    changed();
    for (const each of ["accuracy", "risk"]) at(`show-${each}`).setAttribute("aria-pressed", String(each === view));
    drawCurves();
  });
}
at("apply").addEventListener("submit", (event) => { event.preventDefault(); apply(wholePolicy()); });
at("reset-button").addEventListener("click", () => apply({ alpha: null, threshold: null, fail_open: null }));

await load();
setAlpha();
openControls();
await Promise.all([loadDryRun(), loadHistory()]);
