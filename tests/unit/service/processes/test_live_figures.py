"""Figures of several models, one of which fails."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from darksight_service.control.state import Deployment, ModelState, State
from darksight_service.processes.live_figures import LiveFigures

from tests.support.bundles import make_bundle


def test_a_model_that_fails_loses_its_figures_and_the_others_keep_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old numbers of the model that failed are dropped, and those after it are published."""
    state = State({name: ModelState(name, versions={name: Deployment("a")}) for name in ("bad", "good")})
    kept: list[Any] = []
    segments: list[Any] = []
    counts = SimpleNamespace(drop_accuracy=kept.append, set_segments=segments.append)
    figures = LiveFigures(
        SimpleNamespace(data_dir=tmp_path),  # type: ignore[arg-type]  # a stub
        SimpleNamespace(read=lambda: state),  # type: ignore[arg-type]  # a stub
        SimpleNamespace(),  # type: ignore[arg-type]  # a stub
        counts,  # type: ignore[arg-type]  # a stub
    )

    def publish(model: str, *_: object) -> dict[str, Any]:
        if model == "bad":
            raise ValueError("a bundle that does not fit its rows")
        return {"version": model}

    monkeypatch.setattr(figures, "_bundle", lambda *_: object())
    monkeypatch.setattr(figures, "_publish_labels", lambda *_: None)
    monkeypatch.setattr(figures, "_publish_figures", publish)
    monkeypatch.setattr(figures, "_segments", lambda model, *_: {(model, "camera", "7"): (1.0, False, False)})

    figures.publish_accuracy()

    assert set(kept[-1]) == {("good", "good")}
    assert [name for name, *_ in segments[-1]] == ["good"]
    assert "good" in json.dumps(json.loads((tmp_path / "accuracy.json").read_text()))


def test_versions_that_are_no_longer_used_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred deployments leave what the active version needs, and what the last rows needed."""
    state = State({"m": ModelState("active", versions={"active": Deployment("a")})})
    counts = SimpleNamespace(drop_accuracy=lambda _: None, set_segments=lambda _: None)
    figures = LiveFigures(
        SimpleNamespace(data_dir=tmp_path),  # type: ignore[arg-type]  # a stub
        SimpleNamespace(read=lambda: state),  # type: ignore[arg-type]  # a stub
        SimpleNamespace(),  # type: ignore[arg-type]  # a stub
        counts,  # type: ignore[arg-type]  # a stub
    )
    bundle = make_bundle()
    monkeypatch.setattr(figures, "_bundle", lambda *_: bundle)
    monkeypatch.setattr(figures, "_publish_labels", lambda *_: None)
    monkeypatch.setattr(figures, "_publish_figures", lambda *_: {"version": "active"})
    for version in [*map(str, range(100)), "active"]:
        figures.detectors("m", version)
        figures._drifts["m", version] = 1, None
        figures._retries["m", version] = 0.0

    figures.publish_accuracy()
    figures.detectors("m", "shadow")
    figures.publish_accuracy()

    assert set(figures._detectors) == {"active", "shadow"}
    assert set(figures._drifts) == {("m", "active")}
    assert {version for _, version in figures._retries} <= {"active", "shadow"}
