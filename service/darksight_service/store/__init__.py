"""Points, outcomes, counts and the audit trail in SQL, on SQLite or PostgreSQL; nothing else imports SQLAlchemy."""

from darksight_service.store.engine import Timeouts
from darksight_service.store.frames import Frame, joined
from darksight_service.store.mapped import MAX_MAPPED, MapPoints
from darksight_service.store.places import Places
from darksight_service.store.retention import Limits, Pruned
from darksight_service.store.rollups import ClassRate, Rates
from darksight_service.store.search import Page, PointFilter, StoredPoint
from darksight_service.store.store import Inserted, Store, StoreStats
from darksight_service.store.verdicts import Accuracy, Cutoffs, DecisionCounts

__all__ = [
    "MAX_MAPPED",
    "Accuracy",
    "ClassRate",
    "Cutoffs",
    "DecisionCounts",
    "Frame",
    "Inserted",
    "Limits",
    "MapPoints",
    "Page",
    "Places",
    "PointFilter",
    "Pruned",
    "Rates",
    "Store",
    "StoreStats",
    "StoredPoint",
    "Timeouts",
    "joined",
]
