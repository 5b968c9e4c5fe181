"""DarkSight in MLflow: a bundle as an artifact of a run, and a model that returns predictions with decisions.

The model is logged as code and files, not as a pickle: `mlflow_model.py` is the code, the bundle and the classifier are
its artifacts. The environment that loads it needs darksight.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
from mlflow.pyfunc import PythonModel

from darksight_core.bundle import read_bundle
from darksight_core.rows.frames import read_frame
from darksight_core.rows.schema import Reason, stored_name
from darksight_core.rows.version import __version__
from darksight_core.runtime.policy import ScoringPolicy

__all__ = ["GatedModel", "log_bundle", "log_model"]


def log_bundle(path: str | Path, artifact_path: str = "darksight") -> str:
    """Log a bundle as an artifact of the active run, with its version as the tag `darksight.version`; returns the URI.

    Parameters
    ----------
    path
        The file of the bundle, which is verified.
    artifact_path
        Folder of the run's artifacts.
    """
    bundle = read_bundle(path, verify=True)
    mlflow.log_artifact(str(path), artifact_path)
    mlflow.set_tag("darksight.version", bundle.version)
    uri: str = mlflow.get_artifact_uri(f"{artifact_path}/{Path(path).name}")
    return uri


def log_model(path: str | Path, *, classifier: str | None = None, name: str = "gated", **options: Any) -> Any:
    """Log a model whose `predict` returns predictions with decisions; returns what MLflow says about it.

    Parameters
    ----------
    path
        The file of the bundle.
    classifier
        URI of a logged model whose `predict` returns probabilities, such as one of `mlflow.sklearn.log_model` with
        `pyfunc_predict_fn="predict_proba"`. Without it the input of the gated model is probabilities.
    name
        Name of the model.
    options
        Those of `mlflow.pyfunc.log_model`.
    """
    read_bundle(path, verify=True)
    artifacts = {"bundle": str(path)} | ({} if classifier is None else {"classifier": classifier})
    options.setdefault("pip_requirements", [f"darksight=={__version__}", "mlflow-skinny", "pandas"])
    code = Path(__file__).with_name("mlflow_model.py")
    return mlflow.pyfunc.log_model(name=name, python_model=str(code), artifacts=artifacts, **options)


class GatedModel(PythonModel):
    """Returns for each row `predicted`, `accepted`, `reason` and `p_value`, as a data frame."""

    _policy: ScoringPolicy
    _classifier: Any = None

    def load_context(self, context: Any) -> None:
        """Load the bundle and the classifier."""
        self._policy = ScoringPolicy.of(read_bundle(context.artifacts["bundle"], verify=True))
        if "classifier" in context.artifacts:
            self._classifier = mlflow.pyfunc.load_model(context.artifacts["classifier"])

    def predict(self, context: Any, model_input: Any, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Predictions and decisions on rows."""
        outputs = model_input if self._classifier is None else self._classifier.predict(model_input)
        names = self._policy.scorer.class_names
        table = read_frame(outputs)
        probs = np.asarray(outputs) if table is None else table.in_order(names)
        scored = self._policy.score(probs)
        columns = {
            "predicted": [None if number < 0 else names[number] for number in scored.predicted.tolist()],
            "accepted": scored.accepted,
            "reason": [stored_name(Reason, number).lower() for number in scored.reason.tolist()],
            "p_value": scored.p_value,
        }
        return pd.DataFrame(columns, index=getattr(model_input, "index", None))
