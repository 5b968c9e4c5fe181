"""The finished steps of a long fit, in a folder, so that a fit that was ended can go on.

Every step is a safetensors file that appears whole or not at all. `identity.json` says of which rows and options they
are: steps of another fit are never taken for these. Arrays of rows are kept by each process for its own rows, so they
serve again if there are as many processes as before; what all processes share serves always.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from darksight_core.bundle.container import write_bytes
from darksight_core.errors import ConfigError
from darksight_core.fit.distributed.process_group import Arrays, ProcessGroup
from darksight_core.map.density import Kde

__all__ = ["Checkpoints"]


class Checkpoints:
    """Runs each step once; with a folder, once in all attempts.

    Parameters
    ----------
    team
        The processes.
    folder
        Where finished steps are kept, or None for nowhere. It is removed by `done`.
    identity
        JSON values that tell this fit from others.
    resume
        Go on with what is in the folder, which must be of the same fit; otherwise it is emptied.
    """

    def __init__(
        self,
        team: ProcessGroup,
        folder: Path | None = None,
        identity: Mapping[str, Any] | None = None,
        *,
        resume: bool = False,
    ) -> None:
        self._team, self._folder = team, folder
        if folder is None:
            return

        def prepare() -> Arrays:
            text = json.dumps(identity, sort_keys=True, indent=2)
            note = folder / "identity.json"
            if resume and note.exists():
                if note.read_text(encoding="utf-8") != text:
                    raise ConfigError(
                        f"{folder} is of a fit with other rows or options; run the same command, or leave --resume away"
                    )
                return {}
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            note.write_text(text, encoding="utf-8")
            return {}

        team.share(prepare)

    def once(self, name: str, make: Callable[[], Arrays]) -> Arrays:
        """What the first process makes, on every process."""
        return self._team.share(lambda: self._kept(name, make))

    def once_by_all(self, name: str, make: Callable[[], Kde]) -> Arrays:
        """A density that all processes make together and the first keeps."""
        kept = self._load(name) if self._team.leads else None
        if bool(self._team.gather(np.array([kept is not None]))[0]):
            return self._team.share(lambda: kept or {})
        made = make().tensors()
        if self._team.leads:
            self._kept(name, lambda: made)
        return made

    def rows(self, name: str, own: range, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """An array for the rows of this process, whose numbers are `own`."""
        return self._kept(f"{name}-{own.start}-{own.stop}", lambda: {"rows": make()})["rows"]

    def done(self) -> None:
        """Forget everything: the fit has ended well."""
        if self._folder is not None and self._team.leads:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _kept(self, name: str, make: Callable[[], Arrays]) -> Arrays:
        found = self._load(name)
        if found is not None:
            return found
        made = make()
        if self._folder is not None:
            data = safetensors.numpy.save({key: value.copy() for key, value in made.items()})
            write_bytes(self._folder / f"{name}.safetensors", data, overwrite=True)
        return made

    def _load(self, name: str) -> Arrays | None:
        """What the folder has, if it can be read."""
        if self._folder is None:
            return None
        try:
            return safetensors.numpy.load((self._folder / f"{name}.safetensors").read_bytes())
        except (FileNotFoundError, safetensors.SafetensorError):
            return None
