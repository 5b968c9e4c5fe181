"""Scores the golden bundle where only the base dependencies are installed: ./dev bare runs it in a venv of its own."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from darksight_core.runtime.scorer import Scorer

HEAVY = ("torch", "scipy", "sklearn", "numba", "pyarrow", "matplotlib", "tqdm")


def main() -> None:
    """Fail unless the heavy libraries are absent and the golden scores come out."""
    present = [name for name in HEAVY if importlib.util.find_spec(name)]
    assert not present, f"this environment is not bare: it has {', '.join(present)}"
    golden = Path(__file__).parent / "golden"
    expected = np.load(golden / "bundle_v3.scores.npz")
    scores = Scorer.load(golden / "bundle_v3.safetensors").score(expected["probs"])
    for name in ("points", "log_density", "log_kde", "p_value"):
        np.testing.assert_allclose(getattr(scores, name), expected[name], rtol=1e-6, atol=1e-6, err_msg=name)
    print(f"scored {len(scores)} rows with numpy and safetensors alone")


if __name__ == "__main__":
    main()
