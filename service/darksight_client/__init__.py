"""Clients of the DarkSight service: `Client` for threads, `AsyncClient` for asyncio.

with Client("localhost:8081") as client:
    scored = client.score("digits", probs)          # a batch, as columns
    client.gate("digits", row).accepted             # one row
    client.report("digits", scored.prediction_ids, labels)
"""

from __future__ import annotations

from darksight_client.aio import AsyncClient
from darksight_client.batcher import Batcher
from darksight_client.client import Client
from darksight_client.errors import (
    Cancelled,
    Conflict,
    DarkSightClientError,
    DeadlineExceeded,
    InvalidRequest,
    MessageTooLarge,
    Overloaded,
    PermissionDenied,
    ServerError,
    Unauthenticated,
    Unavailable,
    UnknownModel,
    Unsupported,
)
from darksight_client.results.models import (
    DecisionCounts,
    DryRun,
    EffectivePolicy,
    Model,
    Policy,
    PolicyChange,
    PolicyState,
    Version,
)
from darksight_client.results.regions import Accuracy, CarriedRegion, Region, RegionChange, RegionExample, RegionPreview
from darksight_client.results.reports import AccuracyRange, AccuracyReport, CertificateVerdict, Reported
from darksight_client.results.rows import Batch, Decision, Gated, Point, Reason, Scored
from darksight_client.transport.fallback import GateCounts

__all__ = [
    "Accuracy",
    "AccuracyRange",
    "AccuracyReport",
    "AsyncClient",
    "Batch",
    "Batcher",
    "Cancelled",
    "CarriedRegion",
    "CertificateVerdict",
    "Client",
    "Conflict",
    "DarkSightClientError",
    "DeadlineExceeded",
    "Decision",
    "DecisionCounts",
    "DryRun",
    "EffectivePolicy",
    "GateCounts",
    "Gated",
    "InvalidRequest",
    "MessageTooLarge",
    "Model",
    "Overloaded",
    "PermissionDenied",
    "Point",
    "Policy",
    "PolicyChange",
    "PolicyState",
    "Reason",
    "Region",
    "RegionChange",
    "RegionExample",
    "RegionPreview",
    "Reported",
    "Scored",
    "ServerError",
    "Unauthenticated",
    "Unavailable",
    "UnknownModel",
    "Unsupported",
    "Version",
]
