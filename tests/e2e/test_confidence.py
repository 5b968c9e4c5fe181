"""Thresholds and comparisons as people use them, and a certificate that is kept over many draws of its rows."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from darksight_service.cli import main
from numpy.typing import NDArray

from darksight_core.bundle import read_bundle
from darksight_core.gate.certify import Targets, certify
from darksight_core.gate.scored_predictions import ScoredPredictions
from darksight_core.guarantees.risk_curve import risk_curve
from darksight_core.predictions import from_arrays, read_predictions
from darksight_core.rows.schema import Reason, ScoredBatch
from darksight_core.rows.simplex import log_probs
from darksight_core.runtime.scorer import Scorer
from darksight_core.scores.confidence import msp
from tests.e2e.conftest import Refusal
from tests.support.builders import make_probs
from tests.support.commands import run_command

SCORES = {
    "msp",
    "entropy",
    "margin",
    "doctor",
    "gen",
    "kl_matching",
    "log_density",
    "log_kde",
    "outlier_score",
    "learned",
}


def ask(*arguments: object) -> dict[str, Any]:
    """The JSON answer of a command that succeeds."""
    done = run_command(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def draw_labels(probs: NDArray[np.float32], seed: int) -> NDArray[np.int64]:
    """Labels of a classifier whose probabilities are true."""
    places = np.random.default_rng(seed).random(len(probs))[:, None]
    return (np.cumsum(probs, axis=1) < places).sum(axis=1).clip(max=probs.shape[1] - 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle, the file it was fitted to, labelled rows that it has not seen, and foreign rows."""
    folder = tmp_path_factory.mktemp("confidence")
    for name, n, seed in (("fit", 1_000, 0), ("labelled", 1_500, 1)):
        probs = make_probs(n, 4, seed=seed)
        np.savez(folder / f"{name}.npz", probs=probs, labels=draw_labels(probs, seed))
    np.savez(folder / "foreign.npz", probs=np.random.default_rng(2).dirichlet(np.full(4, 5.0), 300).astype(np.float32))
    np.savez(folder / "five.npz", probs=make_probs(200, 5), labels=np.zeros(200, dtype=np.int64))
    np.savez(folder / "unlabelled.npz", probs=make_probs(300, 4, seed=3))
    done = run_command("fit", folder / "fit.npz", "--out", folder / "model.safetensors", "--quiet")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize(
    ("options", "kind", "promised", "delta"),
    [
        (("--coverage", 0.8), "coverage", 0.8, None),
        (("--target-accuracy", 0.95), "accuracy", 0.95, 0.05),
        (("--target-accuracy", 0.95, "--delta", 0.1, "--score", "msp"), "accuracy", 0.95, 0.1),
        (("--max-undetected", 0.05), "joint_risk", 0.05, None),
    ],
    ids=["coverage", "accuracy", "accuracy, delta and score", "undetected"],
)
def test_calibrate_writes_a_gate_with_its_certificate(
    folder: Path, tmp_path: Path, options: tuple[object, ...], kind: str, promised: float, delta: float | None
) -> None:
    """Each rule gives a bundle that loads, whose gate is the one in the answer and keeps the promise on new rows."""
    out = tmp_path / "gated.safetensors"
    found = ask("calibrate", folder / "model.safetensors", folder / "labelled.npz", *options, "--out", out)

    reject = found["certificate"]["reject"]
    assert found["feasible"] is True
    assert (reject["kind"], reject["promised"], reject["delta"]) == (kind, promised, delta)
    labelled = read_predictions(folder / "labelled.npz")
    assert found["certificate"]["rows"]["n"] == 1_500
    assert found["certificate"]["rows"]["sha256"] == hashlib.sha256(labelled.row_hashes().tobytes()).hexdigest()
    # 1,500 labels are too few to spend any on a choice.
    assert found["table"] == []
    bundle = read_bundle(out)
    assert bundle.gate is not None
    assert bundle.gate.settings() == found["gate"] == bundle.manifest["gate"]
    assert bundle.manifest["certificate"] == found["certificate"]
    assert bundle.gate.reject_score == reject["score"]
    probs = make_probs(20_000, 4, seed=9)
    accepted = bundle.gate.decide(log_probs(probs), Scorer.load(out).score(probs)).accepted
    wrong = probs.argmax(axis=1) != draw_labels(probs, 9)
    value = {
        "coverage": accepted.mean(),
        "accuracy": 1.0 - wrong[accepted].mean(),
        "joint_risk": (wrong & accepted).mean(),
    }
    assert value[kind] <= promised + 0.02 if kind == "joint_risk" else value[kind] >= promised - 0.03  # fmt: skip


def test_outliers_and_one_more_rule_may_be_combined(folder: Path, tmp_path: Path) -> None:
    """--alpha with --max-undetected gives both rules; outliers are ranked among the bundle's calibration rows."""
    out = tmp_path / "gated.safetensors"
    options = ("--alpha", 0.05, "--max-undetected", 0.04, "--score", "entropy", "--out", out)
    found = ask("calibrate", folder / "model.safetensors", folder / "labelled.npz", *options)

    bundle = read_bundle(out)
    outlier = found["certificate"]["outlier"]
    assert outlier["n"] == len(bundle.calibration)
    assert outlier["score"] == "outlier_score"
    assert outlier["sha256"] == bundle.splits.calibrate.sha256
    assert abs(outlier["observed"] - 0.05) < 0.04
    assert bundle.gate is not None
    foreign = np.load(folder / "foreign.npz")["probs"]
    reasons = bundle.gate.decide(log_probs(foreign), Scorer.load(out).score(foreign)).reason
    assert {Reason.OUTLIER, Reason.LOW_CONFIDENCE} <= set(reasons)


@pytest.mark.parametrize("ending", ["csv", "npz", "parquet"])
def test_score_applies_the_gate_of_a_bundle(folder: Path, tmp_path: Path, ending: str) -> None:
    """A bundle with a gate gives every row of a scored file a decision and a reason."""
    gated, out = tmp_path / "gated.safetensors", tmp_path / f"scores.{ending}"
    options = ("--alpha", 0.05, "--coverage", 0.8, "--score", "msp", "--out", gated)
    ask("calibrate", folder / "model.safetensors", folder / "labelled.npz", *options)

    found = ask("score", gated, folder / "foreign.npz", "--out", out)

    if ending == "npz":
        table = {name: column.tolist() for name, column in np.load(out).items()}
    elif ending == "csv":
        with out.open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        table = {name: [row[name] for row in rows] for name in rows[0]}
    else:
        table = pq.read_table(out).to_pydict()
    gate = read_bundle(gated).gate
    assert gate is not None
    foreign = np.load(folder / "foreign.npz")["probs"]
    expected = gate.decide(log_probs(foreign), Scorer.load(gated).score(foreign))
    assert table["reason"] == [Reason(code).name.lower() for code in expected.reason]
    assert set(table["decision"]) <= {"accept", "reject"}
    assert table["decision"].count("accept") == found["accepted"] == int(expected.accepted.sum())
    assert [int(number) for number in table["predicted"]] == expected.predicted.tolist()
    assert [float(value) for value in table["top"]] == pytest.approx(expected.top.tolist())
    rejected = {reason: table["reason"].count(reason) for reason in set(table["reason"]) - {"none"}}
    assert found["rejected"] == rejected
    assert (found["alpha"], found["outliers"]) == (0.05, rejected.get("outlier", 0))


def test_sets_are_calibrated_scored_and_evaluated(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """calibrate --sets splits the rows, score writes the sets, evaluate measures them, and alone it keeps the gate."""
    gated, again, out = tmp_path / "gated.safetensors", tmp_path / "again.safetensors", tmp_path / "scores.csv"
    labelled, model = folder / "labelled.npz", folder / "model.safetensors"

    def run(*arguments: object) -> tuple[int, str]:
        status = main([str(argument) for argument in arguments])
        return status or 0, capsys.readouterr().out

    status, text = run("calibrate", model, labelled, "--coverage", 0.7, "--sets", 0.95, "--out", gated)
    assert status == 0
    assert "of 500 rows, drawn by seed, are rejected and calibrate the sets" in text
    bundle = read_bundle(gated)
    assert bundle.gate is not None
    assert bundle.gate.sets is not None
    assert bundle.manifest["certificate"]["rows"]["certifying"] == 1_000
    assert bundle.manifest["certificate"]["sets"]["n"] == bundle.gate.sets.n
    run("score", gated, labelled, "--out", out, "--quiet")
    with out.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    rejected = [row for row in rows if row["decision"] == "reject"]
    assert all(int(row["set_size"]) == len(row["prediction_set"].split("|")) for row in rejected)
    assert {row["set_size"] for row in rows if row["decision"] == "accept"} == {"0"}
    assert all(row["prediction_set"].split("|")[0] == row["predicted"] for row in rejected)
    found = json.loads(run("evaluate", gated, labelled, "--resamples", 0, "--json")[1])["sets"]
    assert found["rows"] == len(rejected)
    assert found["coverage"] >= 0.9
    assert found["accuracy"] < found["coverage"]
    assert 1.0 < found["mean_size"] <= found["top_k"]

    assert main(["calibrate", str(gated), str(labelled), "--sets", "0.9", "--out", str(again)]) == 2
    assert "these rows certified the gate" in capsys.readouterr().err
    status, text = run("calibrate", gated, folder / "fit.npz", "--held-out", "--sets", 0.9, "--out", again)
    kept = read_bundle(again)
    assert status == 0
    assert kept.gate is not None
    assert kept.gate.sets is not None
    assert (kept.gate.threshold, kept.gate.sets.coverage) == (bundle.gate.threshold, 0.9)
    assert kept.manifest["certificate"]["reject"] == bundle.manifest["certificate"]["reject"]


def test_sets_that_too_few_rows_support_are_not_written(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 3 with the number of rejected rows that it takes."""
    arguments = ("calibrate", folder / "model.safetensors", folder / "labelled.npz", "--coverage", 0.9, "--sets", 0.999)

    status = main([*map(str, arguments), "--out", str(tmp_path / "out.safetensors")])

    assert status == 3
    assert "this needs 999 rejected rows that certify nothing else, so about" in capsys.readouterr().out
    assert not (tmp_path / "out.safetensors").exists()


def test_alpha_with_delta_is_stricter_than_on_average(folder: Path, tmp_path: Path) -> None:
    """A false-alarm rate with confidence takes a smaller rank than one on average."""
    arguments = ("calibrate", folder / "model.safetensors", folder / "labelled.npz", "--alpha", 0.05)
    average = ask(*arguments, "--out", tmp_path / "a.safetensors")
    sure = ask(*arguments, "--delta", 0.05, "--out", tmp_path / "b.safetensors")

    assert sure["gate"]["outlier"]["rank"] < average["gate"]["outlier"]["rank"]
    assert sure["gate"]["reject"] is average["gate"]["reject"] is None
    assert "with confidence 0.95" in sure["certificate"]["outlier"]["promise"]


def test_infeasible_is_an_answer(folder: Path, tmp_path: Path) -> None:
    """A promise beyond the labels exits with 3, says how many it takes and which one they support, and writes nothing;
    only if that is allowed, it writes a gate without the rule.
    """
    out = tmp_path / "gated.safetensors"
    arguments = ("calibrate", folder / "model.safetensors", folder / "labelled.npz", "--target-accuracy", 0.9999)
    refused = run_command(*arguments, "--out", out)
    as_json = run_command(*arguments, "--out", out, "--json")

    assert refused.returncode == as_json.returncode == 3
    assert "NOT FEASIBLE" in refused.stdout
    assert "--allow-infeasible" in refused.stderr
    assert not out.exists()
    answer = json.loads(as_json.stdout)
    assert (answer["feasible"], answer["bundle"], answer["version"]) == (False, None, None)
    instead = answer["certificate"]["reject"]["attainable"]
    assert f"at least {instead:.6g} instead" in refused.stdout
    weaker = (*arguments[:-1], instead, "--out", tmp_path / "weaker.safetensors")
    assert ask(*weaker)["feasible"] is True

    found = ask(*arguments, "--out", out, "--allow-infeasible")
    text = run_command(*arguments, "--out", out, "--overwrite", "--allow-infeasible")

    assert found["feasible"] is False
    assert found["gate"]["reject"] is None
    assert found["certificate"]["reject"]["feasible"] is False
    assert found["certificate"]["reject"]["labels_needed"] > 29_000
    gate = read_bundle(out).gate
    assert gate is not None
    assert gate.reject_score is None
    assert text.returncode == 0
    assert "NOT FEASIBLE" in text.stdout
    assert "lacks what is not feasible" in text.stderr


def test_auto_shows_the_table_that_it_chose_from(folder: Path, tmp_path: Path) -> None:
    """The table has every candidate, best first and one of them chosen, from a third of 3,000 rows."""
    probs = make_probs(3_000, 4, seed=4)
    np.savez(tmp_path / "many.npz", probs=probs, labels=draw_labels(probs, 4))
    arguments = ("calibrate", folder / "model.safetensors", tmp_path / "many.npz", "--coverage", 0.9)
    found = ask(*arguments, "--out", tmp_path / "a.safetensors")
    text = run_command(*arguments, "--out", tmp_path / "b.safetensors")

    table = found["table"]
    assert {row["score"] for row in table} == SCORES - {"kl_matching"}
    assert [row["augrc"] for row in table] == sorted(row["augrc"] for row in table)
    assert [row["score"] for row in table if row["chosen"]] == [found["gate"]["reject"]["score"]]
    assert found["certificate"]["rows"]["choosing"] == 1_000
    assert found["certificate"]["rows"]["certifying"] == 2_000
    assert "AUGRC" in text.stdout
    assert "Promise: at least 0.9 of rows are accepted" in text.stdout


def test_rows_of_the_fit_are_refused_unless_held_out(folder: Path, tmp_path: Path) -> None:
    """The file of the fit cannot certify; --held-out takes from it the rows that the fit has not seen."""
    out = tmp_path / "gated.safetensors"
    arguments = ("calibrate", folder / "model.safetensors", folder / "fit.npz", "--coverage", 0.9, "--out", out)

    refused = run_command(*arguments)
    assert refused.returncode == 2
    assert "fit rows" in refused.stderr
    assert "--held-out" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    assert not out.exists()
    held_out = ask(*arguments, "--held-out")
    splits = read_bundle(out).splits
    assert held_out["certificate"]["rows"]["n"] == splits.calibrate.n + splits.test.n


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("calibrate", "model.safetensors", "five.npz", "--coverage", "0.9"), "5 classes"),
        (("calibrate", "model.safetensors", "unlabelled.npz", "--coverage", "0.9"), "labels"),
        (("calibrate", "model.safetensors", "unlabelled.npz", "--max-undetected", "0.1", "--score", "msp"), "labels"),
        (("calibrate", "model.safetensors", "labelled.npz"), "no target"),
        (("calibrate", "model.safetensors", "labelled.npz", "--coverage", "1.5"), "1.5"),
        (("calibrate", "model.safetensors", "labelled.npz", "--coverage", "0.9", "--max-undetected", "0.1"),
         "exclude each other"),
        (("calibrate", "model.safetensors", "labelled.npz", "--coverage", "0.9", "--score", "nobody"), "nobody"),
        (("calibrate", "model.safetensors", "labelled.npz", "--coverage", "0.9", "--held-out"), "not the file"),
        (("calibrate", "model.safetensors", "missing.npz", "--coverage", "0.9"), "missing.npz"),
        (("evaluate", "model.safetensors", "five.npz"), "5 classes"),
        (("evaluate", "model.safetensors", "labelled.npz", "--ood", "five.npz"), "5 classes"),
    ],
    ids=[
        "other classes", "auto without labels", "errors without labels", "no rule", "bad share", "two rules",
        "no score", "not the fit's file", "no file", "evaluate other classes", "foreign other classes",
    ],
)  # fmt: skip
def test_bad_usage_exits_2_with_a_sentence(
    folder: Path, arguments: tuple[str, ...], words: str, refusal: Refusal
) -> None:
    """Bad usage exits with 2, words that say what is wrong, no traceback and no file."""
    out = ("--out", "never.safetensors") if arguments[0] == "calibrate" else ()

    assert words in refusal(folder, (*arguments, *out))
    assert not (folder / "never.safetensors").exists()


def test_evaluate_compares_every_score(folder: Path) -> None:
    """All scores are there for errors and for foreign rows, with intervals around them."""
    arguments = ("evaluate", folder / "model.safetensors", folder / "labelled.npz", "--ood", folder / "foreign.npz")
    found = ask(*arguments)

    assert found["failure"].keys() >= SCORES
    for figures in found["failure"].values():
        assert {"auroc", "aurc", "augrc", "e_aurc", "fpr95", "intervals"} <= figures.keys()
        low, high = figures["intervals"]["auroc"]
        assert low <= figures["auroc"] <= high
    foreign = found["ood"][str(folder / "foreign.npz")]
    assert found["failure"].keys() == foreign.keys()
    assert foreign["msp"]["auroc"] > 0.8
    assert found["chosen"]["reject"] in SCORES
    assert found["chosen"]["outlier"] == "outlier_score"
    assert found["fidelity"]["acc_teacher"] == 1.0
    assert found["warning"] is None


def test_evaluate_tells_people_what_figures_do_not_say(folder: Path) -> None:
    """The text has a table for errors and one per file, marks the best, and warns of rows that were fitted."""
    arguments = (
        "evaluate",
        folder / "model.safetensors",
        folder / "fit.npz",
        "--ood",
        folder / "foreign.npz",
    )
    done = run_command(*arguments)

    assert done.returncode == 0, done.stderr
    assert "KL_sym" in done.stdout
    assert "Which score finds wrong predictions?" in done.stdout
    assert "foreign.npz? 300 foreign" in done.stdout
    assert " *" in done.stdout
    assert "No figure here is a threshold" in done.stdout
    assert "--held-out" in done.stderr


def test_evaluate_without_labels_still_measures_the_map(folder: Path) -> None:
    """Without labels there is no failure part, and this is said."""
    found = ask("evaluate", folder / "model.safetensors", folder / "unlabelled.npz", "--ood", folder / "foreign.npz")

    assert found["failure"] is None
    assert found["chosen"]["reject"] is None
    assert found["fidelity"]["acc_ground"] is None
    assert len(found["ood"]) == 1
    assert any("labels" in note for note in found["comparison_notes"])


def make_traffic(n: int, rng: np.random.Generator) -> tuple[ScoredPredictions, NDArray[np.float64]]:
    """Rows of two classes whose msp grows with u, wrong with probability 0.3 (1 - u)², and that probability."""
    u = rng.random(n)
    chance = 0.3 * (1.0 - u) ** 2
    probs = np.stack([0.5 + 0.499 * u, 0.5 - 0.499 * u], axis=1)
    labels = (rng.random(n) < chance).astype(np.int64)
    noise = rng.normal(size=n)
    columns = {"log_density": noise, "log_kde": noise + u, "outlier_score": noise - u, "p_value": np.ones(n)}
    scores = replace(ScoredBatch.unscored(n), points=np.zeros((n, 2)), **columns)
    return ScoredPredictions.of(from_arrays(probs, labels=labels), scores), chance


@pytest.mark.parametrize(("score", "repeats"), [("msp", 100), ("auto", 40)])
def test_certified_accuracy_is_kept_over_many_calibrations(
    score: str, repeats: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target is missed by at most δ + 3 standard errors of gates; a threshold that looks good misses it often. So
    it is if a score is chosen too.
    """
    monkeypatch.setattr(sys.modules["darksight_core.gate.certify"], "CHOICE_ROWS", 500)
    delta, target = 0.1, 0.95
    world, chance = make_traffic(100_000, np.random.default_rng(12345))
    broken = naive = feasible = 0
    for seed in range(repeats):
        rows, _ = make_traffic(600, np.random.default_rng(seed))
        found = certify(rows, Targets(accuracy=target, delta=delta, score=score, seed=seed), 999)
        if found.feasible:
            feasible += 1
            broken += chance[found.gate.decide(world.log_pi, world.scores).accepted].mean() > 1.0 - target
        assert rows.errors is not None
        curve = risk_curve(msp(rows.log_pi), rows.errors)
        good = np.flatnonzero(curve.selective_risk <= 1.0 - target)
        naive += len(good) > 0 and chance[msp(world.log_pi) > curve.threshold[good[-1]]].mean() > 1.0 - target

    noise = math.sqrt(delta * (1.0 - delta) / repeats)
    assert feasible > 0.5 * repeats
    assert broken / repeats <= delta + 3.0 * noise
    assert naive / repeats > 0.3
