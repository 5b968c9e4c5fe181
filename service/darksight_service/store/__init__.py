"""Points, outcomes, counts and the audit trail in SQL, on SQLite or PostgreSQL; nothing else imports SQLAlchemy."""

from darksight_service.store.engine import Timeouts
from darksight_service.store.read.map_points import MAX_MAPPED, MapPoints
from darksight_service.store.read.point_table import PointTable, joined
from darksight_service.store.read.policy_evaluation import Accuracy, Cutoffs, DecisionCounts
from darksight_service.store.read.region_points import Places
from darksight_service.store.read.search import Page, PointFilter, StoredPoint
from darksight_service.store.rollups import ClassRate, Rates
from darksight_service.store.store import Inserted, Store, StoreStats
from darksight_service.store.write.retention import Limits, Pruned

__all__ = [
    "MAX_MAPPED",
    "Accuracy",
    "ClassRate",
    "Cutoffs",
    "DecisionCounts",
    "Inserted",
    "Limits",
    "MapPoints",
    "Page",
    "Places",
    "PointFilter",
    "PointTable",
    "Pruned",
    "Rates",
    "Store",
    "StoreStats",
    "StoredPoint",
    "Timeouts",
    "joined",
]
