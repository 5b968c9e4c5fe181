// The gate page: comparison of scores, thresholds and certificate, dry run, change of the policy.

import { getJson, postJson } from "./api.js";
import { count, fixed, later, percent, spanOf, spanOptions, stat, table, when } from "./figures.js";
import { element, notify, openControls, showEmpty } from "./notice.js";
import { classColour } from "./palette.js";
import { draw } from "./plot.js";
import { openPage } from "./shell.js";
import { readState, writeState } from "./state.js";

const DEFAULTS = { span: "30d", since: 0, until: 0, labels: "all", view: "accuracy", alpha: "", threshold: "", accuracy: 0, delta: "" };
const VERDICTS = {
  kept: ["verdict good", "Kept. ", "The whole interval meets the promise."],
  broken: ["verdict bad", "Broken. ", "The whole interval misses the promise: the traffic is no longer like the rows that certified it. Calibrate the bundle again."],
  open: ["verdict", "Not decided. ", "The interval includes the promise; more labels narrow it."],
};
const at = (id) => document.getElementById(id);

const page = await openPage();
const state = readState(DEFAULTS);
let found = null;

const asked = () => ({ model: page.model, version: page.version, labels: state.labels, ...spanOf(state) });
const tried = () => ({ alpha: state.alpha, threshold: state.threshold });
const labelOf = (score) => found.score_labels[score] || score;
const nameOf = (curve) => labelOf(curve.name) + (curve.name === found.gate.reject?.score ? " (in force)" : "");

/** Accuracy to certify and delta: those of the URL, else the bundle's promise, else what the labels are likely to support. */
function target() {
  const own = found.promise?.kind === "accuracy" ? found.promise : null;
  const likely = Math.floor(200 * found.steps.low[currentStep()]) / 200;
  return {
    accuracy: state.accuracy || own?.promised || Math.min(Math.max(likely, 0.5), 0.995),
    delta: state.delta || String(own?.delta ?? 0.05),
  };
}

function show() {
  const { used, curves, gate } = found;
  at("used").textContent =
    `${count(used.labels)} labelled points${used.labels === used.max_labels ? " (the newest; older ones are not read)" : ""}, ${count(used.errors)} of them wrong` +
    (used.compared < used.labels ? `; scores are compared on the newest ${count(used.compared)}` : "") +
    (used.left_out ? `; ${count(used.left_out)} are left out, since only a part of accepted rows like theirs is stored (keep_accepted)` : "") +
    (used.unscored ? `; ${count(used.unscored)} points without a score are not used.` : ".");
  const hasLabels = used.labels > 0;
  at("nothing").hidden = hasLabels;
  at("curves-card").hidden = at("scores-card").hidden = !hasLabels;
  at("certificate").hidden = !hasLabels;
  if (!hasLabels) {
    showEmpty(
      at("nothing"),
      state.labels === "audit" ? "The random audit has no labels yet" : "No point of this time span has a label",
      element("span", {}, "Report outcomes with ", element("code", {}, "client.report(model, prediction_ids, labels)"),
        ", or label points on the ", element("a", { href: `/review?model=${encodeURIComponent(page.model)}` }, "review page"), "."),
    );
  } else if (curves) {
    drawCurves();
    showScores();
  } else at("scores").replaceChildren(element("p", { class: "hint" }, "Comparing scores…"));
  showPromise();
  const reject = gate.reject;
  at("sliding").hidden = !reject || !hasLabels;
  at("rule-missing").hidden = Boolean(reject);
  if (!reject) {
    at("rule-missing").replaceChildren(
      element("p", {}, "This bundle has no reject score, so there is no threshold. Add one and deploy the new bundle: ",
        element("code", {}, "darksight calibrate BUNDLE LABELLED --coverage 0.95 --out GATED")));
  }
  const certified = found.is_certified ? "certified by the bundle" : "not certified";
  at("score-line").textContent = reject
    ? `Current gate: accept if ${labelOf(reject.score)} ≥ ${short(reject.threshold)}; ${outlierText(gate)}; ${certified}. `
      + "To use another score, run “darksight calibrate --score”."
    : `Current gate: ${outlierText(gate)}.`;
  showSlider();
  return hasLabels;
}

function showPromise() {
  const { promise, is_certified: isCovered } = found;
  at("promise-card").hidden = !promise;
  if (!promise) return;
  const { measured, kind } = promise;
  const what = { accuracy: "accuracy of accepted", coverage: "accepted", joint_risk: "accepted and wrong" }[kind];
  const sure = promise.delta === null ? "on average" : `with ${percent(1 - promise.delta, 0)} confidence`;
  const [style, title, words] = measured.rows ? VERDICTS[promise.verdict] : ["verdict", "Not measured. ", "It needs labelled points that the gate accepts."];
  at("promise").replaceChildren(
    element("div", { class: "stats" },
      stat(`${kind === "joint_risk" ? "≤" : "≥"} ${percent(promise.promised)}`, `promised, ${sure}`, promise.words),
      stat(percent(measured.share), `measured: ${what}`),
      stat(`${percent(measured.low)} – ${percent(measured.high)}`, "95% interval", "exact, if the labels are a random sample of the traffic"),
      stat(count(measured.rows), kind === "accuracy" ? "accepted labelled points" : "labelled points")),
    element("div", { class: style }, element("b", {}, title), words + (isCovered ? "" : " The gate was changed, so the certificate does not cover it.")),
  );
}

const outlierText = (gate) => (gate.outlier ? `outliers at α = ${gate.outlier.alpha}` : "no outlier rule");
/** A threshold as people read it: a probability, if the score is the log-odds of one. */
function short(value) {
  if (!found.is_log_odds) return value === "-inf" ? "−∞" : fixed(value, 3);
  const rest = 1 / (1 + Math.exp(asNumber(value)));
  return rest < 1e-4 ? `1 − ${rest.toPrecision(2)}` : fixed(1 - rest, 4);
}

function drawCurves() {
  const risk = state.view === "risk";
  const value = (accuracy) => (risk ? accuracy.map((each) => 1 - each) : accuracy);
  const traces = found.curves.map((curve, number) => ({
    type: "scatter", mode: "lines", name: nameOf(curve), x: curve.coverage, y: value(curve.accuracy),
    line: { color: classColour(number), width: curve.name === "msp" ? 3 : 1.6, dash: curve.name === "msp" ? "solid" : ["solid", "dot", "dash"][number % 3], shape: "hv" },
    hovertemplate: `${nameOf(curve)}: %{y:.2%} at %{x:.0%} accepted<extra></extra>`,
  }));
  const rate = found.used.errors / found.used.labels;
  const oracle = Array.from({ length: 61 }, (_, step) => (step + 1) / 61);
  traces.push({
    type: "scatter", mode: "lines", name: "oracle", x: oracle, y: value(oracle.map((coverage) => Math.min(1, (1 - rate) / coverage))),
    line: { color: "#98A1AD", width: 1.2, dash: "dashdot" }, hoverinfo: "skip",
  });
  return draw(at("curves"), traces, {
    xaxis: { title: { text: "share of rows accepted (coverage)" }, tickformat: ".0%", range: [0, 1] },
    yaxis: { title: { text: risk ? "error rate of accepted rows" : "accuracy of accepted rows", standoff: 12 }, tickformat: ".1%", automargin: false },
    legend: { orientation: "v", font: { size: 11 } }, margin: { l: 76, r: 8, t: 8, b: 44 },
  }, { label: `${risk ? "Risk" : "Accuracy"} against coverage of ${found.curves.length} scores on ${found.used.compared} labelled points` });
}

function showScores() {
  const rows = found.curves.map((curve, number) => {
    const swatch = element("span", { class: "swatch", style: `background:${classColour(number)}` });
    const auroc = curve.intervals.auroc;
    const gain = curve.gain === null || curve.name === "msp" ? "–" : `${(1000 * curve.gain).toFixed(2)} ± ${(1000 * curve.gain_error).toFixed(2)}`;
    return {
      cells: [
        element("span", {}, swatch, nameOf(curve)),
        element("span", { title: auroc ? `95% interval ${fixed(auroc[0])} to ${fixed(auroc[1])}` : "" }, fixed(curve.auroc)),
        fixed(1000 * curve.augrc, 2),
        element("span", { class: "whole" }, gain),
      ],
    };
  });
  const hint = "AUGRC × 1000: lower is better. Gain over max-softmax ± standard error: less than two standard errors is noise.";
  at("scores").replaceChildren(table(["score", "AUROC", "AUGRC", "gain"], rows, { numbers: [1, 2, 3] }), element("p", { class: "hint" }, hint));
}

function showSlider() {
  const { steps, gate } = found;
  if (!gate.reject) return;
  const slider = at("threshold");
  slider.max = String(steps.threshold.length - 1);
  slider.value = String(currentStep());
  showReading(currentStep(), wantedThreshold());
}

const asNumber = (value) => (value === "-inf" ? -Infinity : Number(value));
const wantedThreshold = () => asNumber(state.threshold === "" ? found.gate.reject?.threshold ?? "-inf" : state.threshold);

/** Number of the lowest step that accepts no more than the threshold; equal within a millionth, as in the gate. */
function currentStep() {
  const lowest = wantedThreshold() - 1e-6 * Math.max(Math.abs(wantedThreshold()), 1e-5);
  const step = found.steps.threshold.findIndex((each) => asNumber(each) >= lowest);
  return step < 0 ? found.steps.threshold.length - 1 : step;
}

function showReading(step, wanted) {
  const { steps } = found;
  const accepted = steps.accepted[step];
  const accuracy = accepted ? 1 - steps.wrong[step] / accepted : null;
  at("threshold-value").textContent = short(Number.isFinite(wanted) ? wanted : "-inf");
  at("threshold").setAttribute("aria-valuetext", `${short(Number.isFinite(wanted) ? wanted : "-inf")}, accepts ${percent(accepted / steps.rows)}`);
  at("reading").replaceChildren(
    stat(percent(accepted / steps.rows), "accepted", "share of labelled points that all rules accept, including regions"),
    stat(percent(accuracy, 2), "accuracy of accepted"),
    stat(`${percent(steps.low[step])} – ${percent(steps.high[step])}`, "95% interval", "exact, for a threshold that was fixed without these labels"),
    stat(count(steps.wrong[step]), "accepted errors"),
    stat(count(accepted), "accepted labelled points"),
  );
}

const loadCertificate = () =>
  page.guard(async () => {
    const { accuracy, delta } = target();
    showTarget(accuracy, delta);
    const { certificate } = await getJson("/api/gate/certificate", { ...asked(), ...tried(), threshold: "", accuracy, delta });
    const container = at("certificate");
    if (!certificate) {
      container.replaceChildren();
      return;
    }
    const { threshold, coverage, picked } = certificate;
    const goal = `${percent(accuracy)} accuracy with ${percent(1 - Number(delta), 0)} confidence`;
    if (!threshold.feasible) {
      const more = threshold.labels_needed === null
        ? "At these error rates more labels would not help: no part of the points is that accurate. Choose a lower accuracy."
        : `At these error rates it needs about ${count(threshold.labels_needed)} labels; there are ${count(found.used.labels)}.`;
      container.replaceChildren(element("div", { class: "verdict bad" }, element("b", {}, `No threshold can be certified for ${goal}. `), more));
    } else {
      const use = element("button", { id: "use-certified", type: "button", onclick: () => setThreshold(threshold.value) }, "Use this threshold");
      container.replaceChildren(
        element("div", { class: "verdict good" },
          element("b", {}, `Certified for ${goal}: ${threshold.value === "-inf" ? "accept everything but outliers" : `accept from ${short(threshold.value)}`}, which accepts ${percent(coverage)} of rows. `), use));
    }
    const words = "By Learn-then-Test. It holds without drift, and only if the labels are a random sample (choose “random audit only” if some were selected by hand). ";
    const warning = picked === null ? "" : `The lowest threshold with a measured accuracy of ${percent(accuracy)} is ${short(picked)}. It is not certified: about half of the thresholds chosen this way miss their target on new data.`;
    container.append(element("p", { class: "hint" }, words + warning));
  });

const loadDryRun = () =>
  page.guard(async () => {
    const run = await getJson("/api/gate/dry-run", { model: page.model, ...spanOf(state), ...tried() });
    if (!run.points) {
      at("dry-run").replaceChildren(element("p", { class: "hint" }, "No points are stored for this time span."));
      return;
    }
    const line = (label, key) => ({ cells: [label, count(run.before[key]), count(run.after[key])] });
    const share = (part) => percent(part.points ? part.accepted / part.points : null);
    at("dry-run").replaceChildren(
      table(["", "current", "new"], [
        { cells: ["accepted", share(run.before), share(run.after)] },
        line("outliers", "outliers"), line("low confidence", "low_confidence"), line("in a region", "regions"),
        { cells: ["accepted errors (labelled)", ...[run.before, run.after].map((part) => count(part.accepted_labelled - part.accepted_correct))] },
      ], { numbers: [1, 2] }),
      element("p", { class: "hint" }, `On ${count(run.before.points)} points of the active version${run.before.stored < run.before.points ? `, of which ${count(run.before.stored)} are stored and stand for the others,` : ""} since ${when(run.since_ms)} (about the newest 50,000).`),
    );
  });

const loadHistory = () =>
  page.guard(async () => {
    const { changes } = await getJson("/api/gate/history", { model: page.model });
    if (!changes.length) {
      at("history").replaceChildren(element("p", { class: "hint" }, "The gate has not been changed since the bundle was deployed."));
      return;
    }
    const text = (value, none) => (value === null ? none : String(value));
    at("history").replaceChildren(
      table(["time", "author", "α", "threshold", "comment", "accepts more", "version"], changes.map((change) => ({
        cells: [when(change.changed_ms), change.author || "–", text(change.alpha, "as in the bundle"),
          change.threshold === null ? "as in the bundle" : String(+Number(change.threshold).toPrecision(6)), change.comment,
          change.loosened.join("; ") || "–", element("span", { class: "mono" }, change.version.slice(0, 12))],
      })), { numbers: [2, 3] }));
  });

const load = () =>
  page.guard(async () => {
    found = await getJson("/api/gate", { ...asked(), ...tried() });
    if (found.is_computing) setTimeout(loadCurves, 400);
    if (show()) await loadCertificate();
  });

/** Curves are computed in the background after new labels; poll until they are ready. */
const loadCurves = () =>
  page.guard(async () => {
    const newer = await getJson("/api/gate", { ...asked(), ...tried() });
    if (newer.is_computing) setTimeout(loadCurves, 400);
    found.curves = newer.curves;
    if (!found.curves) return;
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
    notify("Enter a comment; it is recorded in the audit trail.", "error");
    at("comment").focus();
    return;
  }
  await page.guard(async () => {
    const { loosened } = await postJson("/api/gate/policy", { model: page.model, version: page.version, comment, author: at("author").value, ...policy });
    const more = loosened.length ? ` It accepts more rows than before: ${loosened.join("; ")}.` : "";
    notify(`The gate has changed; all workers apply it within a second.${more}`, "done");
    at("comment").value = "";
    state.threshold = "";
    state.alpha = "";
    changed();
    await load();
    setAlpha();
    await Promise.all([loadHistory(), loadDryRun()]);
  });
}

/** The complete policy: the current gate with the changes; a missing value would reset it to the bundle's. */
function wholePolicy() {
  const gate = found.gate;
  const alpha = state.alpha !== "" ? Number(state.alpha) : gate.outlier ? gate.outlier.alpha : 0;
  const threshold = !gate.reject ? null : state.threshold !== "" ? state.threshold : String(gate.reject.threshold);
  return { alpha, threshold, fail_open: gate.fail_open };
}

function setAlpha() {
  if (found) at("alpha").value = state.alpha !== "" ? state.alpha : found.gate.outlier ? String(found.gate.outlier.alpha) : "0";
}

function showTarget(accuracy, delta) {
  at("accuracy").value = String(accuracy);
  const deltas = [...new Set(["0.1", "0.05", "0.01", delta])].sort((a, b) => b - a);
  at("delta").replaceChildren(...deltas.map((each) => element("option", { value: each, selected: each === delta }, percent(1 - each, each < 0.01 ? 1 : 0))));
}

spanOptions(at("span"), state, ["24h", "7d", "30d"]);
at("labels").value = state.labels;
at("author-field").hidden = Boolean(page.session.name);
const mayApply = page.may("admin") && page.isActive;
at("apply-button").disabled = at("reset-button").disabled = !mayApply;
at("apply-hint").textContent = mayApply
  ? "The certificate of the bundle does not cover a changed gate."
  : page.may("admin") ? "Only the gate of the active version can be changed." : "Changing the gate needs a token with scope admin.";

at("span").addEventListener("change", () => { Object.assign(state, { span: at("span").value, since: 0, until: 0 }); changed(); location.reload(); });
at("labels").addEventListener("change", () => { state.labels = at("labels").value; changed(); location.reload(); });
at("threshold").addEventListener("input", () => {
  const step = Number(at("threshold").value);
  state.threshold = String(found.steps.threshold[step]);
  showReading(step, asNumber(state.threshold));
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
