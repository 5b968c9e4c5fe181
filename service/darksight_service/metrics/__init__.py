"""Metrics: what the service counts, and how Prometheus reads it.

    files        memory-mapped files of numbers that survive kill -9
    counts       what a worker counts per model, on the request path
    processes    numbers of processes that do not depend on single rows: calls, spool, drain, drift
    catalogue    every metric: name, labels, help text, and the metric files that have it
    exposition   merges the files of all processes for a scrape

Only the supervisor, which answers `/metrics`, imports `exposition` and with it prometheus_client.
"""

from __future__ import annotations

from darksight_service.metrics.counts import Counts, ModelCounts
from darksight_service.metrics.processes import ProcessCounts, StorageCounts, clear_gauges

__all__ = ["Counts", "ModelCounts", "ProcessCounts", "StorageCounts", "clear_gauges"]
