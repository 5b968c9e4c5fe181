"""Limits of the gRPC server of a worker."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from darksight_service.grpc_api.server import _max_connections
from darksight_service.settings import Settings


def test_connections_leave_descriptors_for_the_http_api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It has up to 512 connections in the same process."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    alone, both = (_max_connections(Settings(data_dir=tmp_path), others) for others in (0, 512))

    assert alone - both == 512
