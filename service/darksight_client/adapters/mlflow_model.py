"""The code of the model that `darksight_client.adapters.mlflow.log_model` logs; MLflow runs it to load the model."""

from __future__ import annotations

from mlflow.models import set_model

from darksight_client.adapters.mlflow import GatedModel

set_model(GatedModel())
