// The drift page: what kind of drift it is now, what it costs in accuracy, whether the certificate holds, and segments.

import { getJson } from "./api.js";
import { showSegments } from "./drift-segments.js";
import { count, fixed, percent, stat, table, when } from "./figures.js";
import { element, openControls, showEmpty } from "./notice.js";
import { openPage } from "./shell.js";

const at = (id) => document.getElementById(id);
const MAX_CLASSES = 25;

const VERDICTS = {
  none: "No drift",
  class_mix: "The class mix has changed",
  new_content: "New content: more outliers than usual",
  less_sure: "The classifier is less sure than usual",
  surer: "The classifier is surer than usual",
  mixed: "Mixed: the class mix has changed, and rows within classes too",
};
const CERTIFICATES = { none: "none", open: "open", kept: "kept", broken: "broken" };
const range = (found) => `${percent(found.low)} to ${percent(found.high)}`;

function accuracyStats(accuracy, audit) {
  const estimate = accuracy && accuracy.estimate !== null
    ? stat(percent(accuracy.estimate), `estimated accuracy, ${range(accuracy)}`, `without labels; the range holds for ${percent(accuracy.coverage, 0)} of windows like those of the back-test`)
    : stat(accuracy?.at_most ? `≤ ${percent(accuracy.at_most)}` : "withheld", "estimated accuracy", accuracy ? accuracy.withheld : "");
  const audited = audit.accuracy === null
    ? stat("–", "accuracy of accepted rows", "too few labels of the audit")
    : stat(percent(audit.accuracy), `accuracy of accepted rows, ${range(audit)}`, `from ${audit.labels} labels of the audit; the interval holds however often it is read`);
  const promised = audit.promised === null ? "certificate" : `certificate of ${percent(audit.promised)}`;
  return [
    ...(accuracy ? [estimate] : []),
    audited,
    stat(CERTIFICATES[audit.verdict], promised, `evidence against it ${fixed(audit.log_evidence, 1)}, broken at ${fixed(audit.threshold, 1)}`),
    ...(audit.verdict === "open" ? [stat(audit.labels_needed === null ? "not attainable" : count(audit.labels_needed), "more labels would show 3 points less", "with which the test finds an accuracy 3 points below the certificate with a probability of 80%; not attainable while too many drawn rows stay without a label")] : []),
  ];
}

function hint({ drift, audit, level }, review) {
  const parts = [];
  if (drift) {
    parts.push(`${count(drift.rows)} rows tested; verdict, shares and estimate are of ${count(drift.points)} rows since ${when(drift.since_ms)}. Evidence is an alarm at ${fixed(Math.min(...drift.evidence.map((each) => each.threshold)), 1)}: without drift it ever gets there with a probability of at most ${percent(level, 0)}. `);
    if (drift.accuracy.withheld) parts.push(`The estimated accuracy is withheld: ${drift.accuracy.withheld}. `);
  }
  if (audit.verdict === "broken") parts.push("Accepted rows are less accurate than certified; while the certificate holds, that is ever said with a probability of at most 1%. ");
  if (audit.promised !== null) parts.push("Rows for the certificate are drawn at random, with known odds: ", element("a", { href: review }, "label them on the review page"), ".");
  return parts;
}

function showShares(drift) {
  if (!drift.class_shares) return;
  const away = ([, share]) => -Math.abs(share.estimate - share.reference);
  const names = Object.entries(drift.class_shares).sort((a, b) => away(a) - away(b)).slice(0, MAX_CLASSES);
  const rows = names.map(([name, share]) => ({
    mark: share.is_changed ? "moved" : null,
    cells: [name, percent(share.reference), percent(share.estimate), range(share)],
  }));
  const method = drift.class_shares_method === "bbse" ? "the confusion of labelled reference rows (BBSE)" : "maximum likelihood (MLLS)";
  at("shares").replaceChildren(
    table(["class", "reference", "now", "95% interval"], rows, { numbers: [1, 2, 3] }),
    element("p", { class: "hint" }, `From ${method}, without labels. Right only if the class mix alone has changed. The intervals hold for all classes together; marked classes changed.`),
  );
  at("shares").parentElement.hidden = false;
}

function showRegions(regions, map) {
  at("regions").parentElement.hidden = false;
  if (!regions) {
    showEmpty(at("regions"), "This version has no regions", element("span", {}, "Draw one on the ", element("a", { href: map }, "map"), " to follow its share of the rows."));
    return;
  }
  const rows = regions.slice(0, MAX_CLASSES).map((region) => ({
    mark: region.is_changed ? "moved" : null,
    cells: [region.name, percent(region.reference), percent(region.share), fixed(region.residual, 1)],
  }));
  at("regions").replaceChildren(table(["region", "reference", "now", "z"], rows, { numbers: [1, 2, 3] }), element("p", { class: "hint" }, "z: change in standard errors. Marked regions are beyond 3; this describes the rows and is not a test of its own."));
}

/** Show the answer of /api/drift; `query` names the model for links to other pages. */
function showNow(found, query) {
  const { drift, audit } = found;
  const verdict = at("verdict");
  if (drift) {
    const changed = Object.entries(drift.changed_classes).map(([name, residual]) => `${name} ${residual > 0 ? "more" : "less"} often`);
    verdict.className = `verdict ${drift.verdict === "none" ? "good" : "bad"}`;
    verdict.replaceChildren(element("b", {}, VERDICTS[drift.verdict]), `: ${drift.reason}${changed.length ? `; predicted now: ${changed.join(", ")}` : ""}.`);
    const kinds = drift.evidence.map(({ label, value, threshold }) => stat(fixed(value, 1), `evidence, ${label}`, `alarm at ${fixed(threshold, 1)}`));
    at("now").replaceChildren(...kinds, ...accuracyStats(drift.accuracy, audit));
    showShares(drift);
    showRegions(drift.regions, `/map?${query}`);
  } else {
    verdict.replaceChildren("No rows are tested for drift yet.");
    at("now").replaceChildren(...accuracyStats(null, audit));
  }
  at("used").replaceChildren(...hint(found, `/review?${query}&stream=certificate`));
}

const page = await openPage();
const asked = { model: page.model, version: page.version };
const query = new URLSearchParams({ model: page.model });
openControls();
await page.guard(async () => showNow(await getJson("/api/drift", asked), query));
await page.guard(async () => {
  const segments = await getJson("/api/drift/segments", asked);
  showSegments(segments, query);
  if (segments.found && at("verdict").classList.contains("good")) {
    at("verdict").className = "verdict bad";
    at("verdict").replaceChildren(element("b", {}, "Segments have changed"), ", all rows together have not; see the card of segments.");
  }
});
