"""What holds for the published predictions.

They are not in the repository, so this is not part of the suite: `DATA=FOLDER ./dev test tests/published` runs it. It
needs the extra `compare`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from darksight_core.evaluation.fidelity import fidelity
from darksight_core.fit import fit_map
from darksight_core.predictions import read_predictions
from darksight_core.rows import simplex
from tests.support.errors import raises_code

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ["DATA"])


def test_real_predictions_reach_the_published_fidelity() -> None:
    """On the paper's own MNIST predictions KL_sym is far below the published 0.0703, every row faithful."""
    log_pi = simplex.log_softmax(np.load(DATA / "mnist_paper" / "test.npz")["logits"])

    fitted = fit_map(np.exp(log_pi).astype(np.float32))
    found = fidelity(log_pi, fitted.student.log_posterior(fitted.points))

    assert found.kl_sym < 0.02
    assert found.acc_teacher == 1.0


def test_real_files_load() -> None:
    """Every real predictions file loads as it is, and files of other things are refused as such."""
    others = {"embedding", "images", "test_features"}
    paths = sorted(DATA.glob("*/*.npz"))

    assert paths
    for path in paths:
        if path.stem in others:
            with raises_code("predictions_missing_data"):
                read_predictions(path)
            continue
        result = read_predictions(path, keep_logits=True)
        with np.load(path) as arrays:
            expected = np.exp(simplex.log_softmax(arrays["logits"])) if "logits" in arrays else arrays["probs"]
            np.testing.assert_allclose(result.probs, expected, rtol=1e-5, atol=1e-30)
            assert ("labels" in arrays) == (result.labels is not None)
            assert result.labels is None or (result.labels == arrays["labels"]).all()
            assert result.n_renormalised == 0


def test_the_paper_again(tmp_path: Path) -> None:
    """On a few rows: every table, figure and claim is in the report."""
    small = ("--rows", "600", "--compared", "600", "--no-umap")
    folders = ("--data", str(DATA), "--out", str(tmp_path))

    subprocess.run([sys.executable, ROOT / "examples" / "reproduce_paper.py", *folders, *small], check=True)

    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert len(re.findall(r"\| (?:reproduced|not reproduced|in part)", report)) >= 10
    assert len(list(tmp_path.glob("*.png"))) >= 5
