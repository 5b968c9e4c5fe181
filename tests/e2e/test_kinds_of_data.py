"""Every kind of predictions that people bring passes through every command, with the right warnings and promises."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from darksight_client import Client, Reason
from scipy.stats import betabinom, binom

from darksight_core.bundle import read_bundle
from darksight_core.fit.network.config import DistilConfig
from darksight_core.gate.gate import Gate
from darksight_core.gate.scored_predictions import ScoredPredictions
from darksight_core.guarantees.thresholds import threshold_by_accuracy
from darksight_core.predictions import from_arrays
from darksight_core.runtime.scorer import Scorer
from tests.support.commands import run_command
from tests.support.kinds import KINDS
from tests.support.servers import Server, running_server

ALPHAS = (0.01, 0.05, 0.1)
DRAWS, LABELS, DELTA = 60, 1_000, 0.05
# Probability that a test of a true promise fails, for one kind.
RISK = 1e-5

every_kind = pytest.mark.parametrize("kind", KINDS)


@dataclass(frozen=True)
class Commands:
    """The commands on files of each kind in a folder; each kind is fitted once."""

    folder: Path
    fits: dict[str, tuple[dict[str, Any], str]] = field(default_factory=dict)
    populations: dict[str, ScoredPredictions] = field(default_factory=dict)

    def bundle(self, kind: str) -> Path:
        """The bundle of a kind."""
        self.fit(kind)
        return self.folder / f"{kind}.safetensors"

    def rows(self, kind: str, seed: int = 1, rows: int | None = None) -> Path:
        """A file of labelled rows of a kind."""
        path = self.folder / f"{kind} {seed}.npz"
        probs, labels = KINDS[kind].draw(rows or KINDS[kind].labelled, np.random.default_rng(seed))
        np.savez(path, probs=probs, labels=labels)
        return path

    def fit(self, kind: str) -> tuple[dict[str, Any], str]:
        """What the fit of a kind prints as JSON and on stderr."""
        if kind not in self.fits:
            file, out = self.rows(kind, 0, KINDS[kind].rows), self.folder / f"{kind}.safetensors"
            done = run_command("fit", file, "--out", out, "--json", "--quiet", *KINDS[kind].options)
            assert done.returncode == 0, done.stderr
            self.fits[kind] = json.loads(done.stdout), done.stderr
        return self.fits[kind]

    def scorer(self, kind: str) -> Scorer:
        """The scorer of a kind, in numpy: compiling would take longer than the tests."""
        return Scorer.of(read_bundle(self.bundle(kind), verify=False), compiled=False)

    def population(self, kind: str) -> ScoredPredictions:
        """New rows of a kind with labels and scores."""
        if kind not in self.populations:
            probs, labels = KINDS[kind].draw(KINDS[kind].pool, np.random.default_rng(4))
            scores = self.scorer(kind).score(probs)
            self.populations[kind] = ScoredPredictions.of(from_arrays(probs, labels=labels), scores)
        return self.populations[kind]


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """One folder for all commands; f_p, which takes nine tenths of a small fit, is trained on fewer rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("darksight_core.fit.pipeline.DistilConfig", partial(DistilConfig, epoch_rows=256))
        yield Commands(tmp_path_factory.mktemp("kinds"))


@pytest.fixture(scope="module")
def server(commands: Commands) -> Iterator[Server]:
    """One service with a model of each kind."""
    models = {f"model{number}": commands.bundle(kind) for number, kind in enumerate(KINDS)}
    with running_server(models, commands.folder / "data", "--workers", "1", is_compiled=True) as running:
        yield running


@every_kind
def test_fit_warns_of_what_the_rows_do_not_allow(kind: str, commands: Commands) -> None:
    """The warnings are those that the kind deserves, on stderr, in the result and in the bundle."""
    found, errors = commands.fit(kind)
    shown = run_command("bundle", "show", commands.bundle(kind)).stdout

    assert tuple(text.partition(":")[0] for text in found["warnings"]) == KINDS[kind].warnings
    for warning in found["warnings"]:
        assert f"darksight: warning: {warning}\n" in errors
        assert warning in shown


@every_kind
def test_evaluate(kind: str, commands: Commands) -> None:
    """The map is measured and its KL_sym explained in words."""
    file = commands.rows(kind)

    done = run_command("evaluate", commands.bundle(kind), file, "--resamples", 10)

    assert done.returncode == 0, done.stderr
    assert "The map is " in done.stdout


@every_kind
def test_calibrate(kind: str, commands: Commands) -> None:
    """A gate is written, or the status says that the promise is not feasible and nothing is written."""
    out = commands.folder / f"{kind} gated.safetensors"

    arguments = ("--alpha", 0.1, "--target-accuracy", 0.8, "--out", out, "--json")
    done = run_command("calibrate", commands.bundle(kind), commands.rows(kind), *arguments)

    assert done.returncode == (0 if json.loads(done.stdout)["feasible"] else 3), done.stderr
    assert out.exists() == (done.returncode == 0)


@every_kind
def test_score(kind: str, commands: Commands) -> None:
    """Every row gets finite scores and its class."""
    file, out = commands.rows(kind), commands.folder / f"{kind} scores.npz"

    done = run_command("score", commands.bundle(kind), file, "--out", out, "--json", "--quiet")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == KINDS[kind].labelled
    with np.load(out) as scores, np.load(file) as rows:
        assert all(np.isfinite(scores[name]).all() for name in scores.files if scores[name].dtype.kind == "f")
        np.testing.assert_array_equal(scores["predicted"], rows["probs"].argmax(axis=1))


@every_kind
def test_report(kind: str, commands: Commands) -> None:
    """A page is written, with the warnings of the fit."""
    out = commands.folder / f"{kind}.html"

    done = run_command("report", commands.bundle(kind), commands.rows(kind), "--out", out)

    assert done.returncode == 0, done.stderr
    page = out.read_text(encoding="utf-8")
    assert all(f"warning of the fit: {warning}" in page for warning in KINDS[kind].warnings)


@every_kind
def test_serve(kind: str, commands: Commands, server: Server) -> None:
    """A service scores rows of the kind as the bundle does."""
    probs = KINDS[kind].draw(20, np.random.default_rng(2))[0]
    expected = commands.scorer(kind).score(probs)

    with Client(server.grpc_target, timeout_seconds=60.0) as client:
        found = client.score(f"model{list(KINDS).index(kind)}", probs)

    assert set(found.reason.tolist()) <= {Reason.NONE, Reason.OUTLIER}
    np.testing.assert_allclose(found.p_value, expected.p_value)
    np.testing.assert_allclose(found.points, expected.points, rtol=1e-4, atol=1e-4)


@every_kind
def test_p_values_flag_no_more_than_they_promise(kind: str, commands: Commands) -> None:
    """Of new rows at most alpha are flagged: their number is at most beta-binomial, given the calibration rows."""
    n, p_values = commands.fit(kind)[0]["rows"]["calibrate"], commands.population(kind).scores.p_value

    for alpha in ALPHAS:
        rank = int(alpha * (n + 1) + 1e-9)
        most = betabinom.ppf(1.0 - RISK, len(p_values), rank, n + 1 - rank) if rank else 0
        assert (p_values <= alpha).sum() <= most


@every_kind
def test_a_certificate_is_kept_over_many_draws(kind: str, commands: Commands) -> None:
    """A threshold misses its accuracy in at most a share delta of the draws of labels from a known population."""
    population = commands.population(kind)
    errors, scores = population.errors, Gate(reject_score="msp").reject_scores(population.log_pi, population.scores)
    assert errors is not None
    rate, rng, feasible = float(errors.mean()), np.random.default_rng(5), 0

    for target in (1.0 - rate - 0.04, min(1.0 - 0.7 * rate, 0.995)):
        missed = 0
        for _ in range(DRAWS):
            drawn = rng.integers(len(errors), size=LABELS)
            found = threshold_by_accuracy(scores[drawn], errors[drawn], target, delta=DELTA)
            if found.feasible:
                gate = Gate(reject_score="msp", threshold=found.value)
                accepted = gate.decide(population.log_pi, population.scores).accepted
                missed += bool(errors[accepted].mean() > 1.0 - target)
                feasible += 1
        assert missed <= binom.ppf(1.0 - RISK, DRAWS, DELTA)

    assert feasible >= DRAWS / 2
