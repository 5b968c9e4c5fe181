"""The table of operations. A call that is not in the table does not exist."""

from __future__ import annotations

from types import MappingProxyType

from darksight_service.operations import inference, models, regions, scoring
from darksight_service.operations.operation import Operation

__all__ = ["OPERATIONS"]

OPERATIONS = MappingProxyType(
    {
        found.name: found
        for module in (scoring, models, regions, inference)
        for found in vars(module).values()
        if isinstance(found, Operation)
    }
)
"""All operations by name, in the order of the documentation."""
