"""Write the golden bundle of the current schema and the scores it gives: `python -m tests.golden.make`.

A golden file is written once for each schema version and never again: it stands for the files that users have.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from darksight_core.bundle import SCHEMA_VERSION, write_bundle
from darksight_core.runtime.scorer import Scorer
from tests.support.bundles import make_bundle

FOLDER = Path(__file__).parent


def main(folder: Path = FOLDER) -> int:
    """Write both files, or neither if one is there."""
    path = folder / f"bundle_v{SCHEMA_VERSION}.safetensors"
    scores_path = folder / f"bundle_v{SCHEMA_VERSION}.scores.npz"
    if path.exists() or scores_path.exists():
        sys.stderr.write(f"{path.name} or {scores_path.name} already exists; golden files are never overwritten\n")
        return 2
    bundle = make_bundle(rows=400, classes=4, log_prior=np.log([0.4, 0.3, 0.2, 0.1]))
    probs = np.random.default_rng(2018).dirichlet(np.full(4, 0.4), 200).astype(np.float32)
    probs[:4] = np.eye(4)
    probs[4] = 0.25
    scores = Scorer.of(bundle, compiled=False).score(probs)
    version = write_bundle(path, bundle)
    np.savez_compressed(
        scores_path,
        probs=probs,
        points=scores.points,
        log_density=scores.log_density,
        log_kde=scores.log_kde,
        fidelity=scores.fidelity,
        outlier_score=scores.outlier_score,
        p_value=scores.p_value,
        version=np.array(version),
    )
    sys.stderr.write(f"wrote {path.name} ({version[:12]}) and {scores_path.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
