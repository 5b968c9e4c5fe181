"""What every step of a fit shares: the rows of this process, checkpoints and progress."""

from __future__ import annotations

from dataclasses import dataclass

from darksight_core.evaluation.progress import Report, silent
from darksight_core.fit.checkpoints import Checkpoints
from darksight_core.fit.distributed.process_group import ProcessGroup
from darksight_core.fit.distributed.shards import Shard

__all__ = ["FitContext"]


@dataclass(frozen=True, slots=True)
class FitContext:
    """How a fit runs.

    Parameters
    ----------
    shard
        The process group and the rows of this process.
    checkpoints
        Where finished steps are kept.
    report
        Called with a `Progress` at each step; only the first process reports.
    """

    shard: Shard
    checkpoints: Checkpoints
    report: Report = silent

    def __post_init__(self) -> None:
        if not self.group.is_first:
            object.__setattr__(self, "report", silent)

    @classmethod
    def alone(cls, n_rows: int, report: Report = silent) -> FitContext:
        """One process that has all rows and keeps no checkpoints."""
        group = ProcessGroup()
        return cls(Shard(group, range(n_rows), n_rows), Checkpoints(group), report)

    @property
    def group(self) -> ProcessGroup:
        """The processes of this fit."""
        return self.shard.group
