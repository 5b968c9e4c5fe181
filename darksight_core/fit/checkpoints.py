"""Checkpoints: the finished steps of a long fit, in a directory, so that a killed fit can be resumed.

A checkpoint is a safetensors file that is written completely or not at all. `identity.json` names the rows and options
of the fit, so that checkpoints of another fit are never used. Arrays of rows are saved by each process for its own
rows, so they can be used again by the same number of processes; arrays that all processes share can always be used.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from darksight_core.bundle.container import write_bytes
from darksight_core.errors import ConfigError
from darksight_core.fit.distributed.process_group import Arrays, ProcessGroup

__all__ = ["Checkpoints"]


class Checkpoints:
    """Runs each step once; with a directory, once over all attempts.

    Parameters
    ----------
    group
        The processes.
    folder
        Directory of the checkpoints, or None to keep none. `done` removes it.
    identity
        JSON values that distinguish this fit from others.
    resume
        Continue with the checkpoints in the directory, which must belong to the same fit; otherwise it is emptied.
    """

    def __init__(
        self,
        group: ProcessGroup,
        folder: Path | None = None,
        identity: Mapping[str, Any] | None = None,
        *,
        resume: bool = False,
    ) -> None:
        self._group, self._folder = group, folder
        if folder is None:
            return

        def prepare() -> Arrays:
            text = json.dumps(identity, sort_keys=True, indent=2)
            note = folder / "identity.json"
            if resume and note.exists():
                if note.read_text(encoding="utf-8") != text:
                    raise ConfigError(
                        f"{folder} has checkpoints of a fit with other rows or options; run that command again, or "
                        "omit --resume"
                    )
                return {}
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            note.write_text(text, encoding="utf-8")
            return {}

        group.broadcast(prepare)

    def once(self, name: str, make: Callable[[], Arrays]) -> Arrays:
        """What the first process makes, on every process."""
        return self._group.broadcast(lambda: self._saved(name, make))

    def rows(self, name: str, own: range, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """An array for the rows of this process, whose numbers are `own`."""
        return self._saved(f"{name}-{own.start}-{own.stop}", lambda: {"rows": make()})["rows"]

    def done(self) -> None:
        """Remove the checkpoints: the fit has succeeded."""
        if self._folder is not None and self._group.is_first:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _saved(self, name: str, make: Callable[[], Arrays]) -> Arrays:
        found = self._load(name)
        if found is None:
            found = make()
            self._save(name, found)
        return found

    def _save(self, name: str, arrays: Arrays) -> None:
        if self._folder is not None:
            data = safetensors.numpy.save({key: value.copy() for key, value in arrays.items()})
            write_bytes(self._folder / f"{name}.safetensors", data, overwrite=True)

    def _load(self, name: str) -> Arrays | None:
        """The arrays of a checkpoint, if it exists and can be read."""
        if self._folder is None:
            return None
        try:
            return safetensors.numpy.load((self._folder / f"{name}.safetensors").read_bytes())
        except (FileNotFoundError, safetensors.SafetensorError):
            return None
