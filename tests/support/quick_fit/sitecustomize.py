"""Fits that train f_p on a sixteenth of the rows, for processes that find this folder on PYTHONPATH.

The training takes 5 CPU seconds, most of a small fit.
"""

from typing import Any

from darksight_core.fit.network.config import DistilConfig

_original = DistilConfig.__init__


def _init(self: DistilConfig, **options: Any) -> None:
    _original(self, **{"epoch_rows": 256, **options})


DistilConfig.__init__ = _init  # type: ignore[method-assign]
