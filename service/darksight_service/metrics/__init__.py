"""What the service counts, and how Prometheus reads it.

    files        memory-mapped counters that survive kill -9
    counts       what a worker counts for each call, on the request path: no prometheus_client
    processes    what processes count, whatever the model
    catalogue    every metric: its name, its labels, why it is there
    exposition   the files of all processes, merged and named
    page         the text that Prometheus scrapes

Only the parent, which answers `/metrics`, imports `exposition` and with it prometheus_client.
"""

from __future__ import annotations

from darksight_service.metrics.counts import Counts, ModelCounts
from darksight_service.metrics.processes import ProcessCounts, StorageCounts, clear_gauges

__all__ = ["Counts", "ModelCounts", "ProcessCounts", "StorageCounts", "clear_gauges"]
