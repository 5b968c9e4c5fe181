"""The golden bundle keeps loading and keeps its scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from darksight_core.bundle import SCHEMA_VERSION, read_bundle
from darksight_core.runtime.scorer import Scorer
from tests.golden.make import main

GOLDEN = Path(__file__).parents[3] / "golden"
# Schemas 1 and 2 were never released, and are refused.
SCHEMAS = range(3, SCHEMA_VERSION + 1)


def check_golden(folder: Path, schema: int) -> None:
    """A golden bundle has the version and gives the scores that stand beside it."""
    bundle = read_bundle(folder / f"bundle_v{schema}.safetensors")
    with np.load(folder / f"bundle_v{schema}.scores.npz", allow_pickle=False) as file:
        expected = dict(file)

    scores = Scorer.of(bundle, compiled=False).score(expected["probs"])

    assert bundle.version == str(expected["version"])
    for name in ("points", "log_density", "log_kde", "fidelity", "outlier_score", "p_value"):
        np.testing.assert_allclose(getattr(scores, name), expected[name], rtol=1e-7, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_golden_bundle_keeps_its_scores(schema: int) -> None:
    """The committed bundle of each schema loads and scores as it did when it was written."""
    assert (GOLDEN / f"bundle_v{schema}.safetensors").exists(), "run tests/golden/make.py and commit its files"
    check_golden(GOLDEN, schema)


def test_golden_script_writes_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The script writes what the test above reads, and never replaces it."""
    assert main(tmp_path) == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    assert main(tmp_path) == 2
    assert "never overwritten" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    check_golden(tmp_path, SCHEMA_VERSION)
