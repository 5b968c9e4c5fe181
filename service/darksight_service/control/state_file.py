"""The state of all models in a file that all processes of a replica share.

`registry.json` is replaced as a whole, so a reader sees the state before a change or after it. A writer holds a lock
from reading to replacing, so no change is lost when two processes write. A reader detects a change from the status of
the file, which takes microseconds.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import TypeAdapter

from darksight_service.control.state import State
from darksight_service.errors import RefusedError

__all__ = ["StateFile", "stamp"]

_SCHEMA = 3
_STATE = TypeAdapter(State)


def stamp(path: Path) -> tuple[int, ...]:
    """A value that changes whenever a file is written or replaced; empty if it cannot be read."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


class StateFile:
    """The state file of a data directory.

    Parameters
    ----------
    path
        Of the file; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def bundle_copies(self) -> Path:
        """Directory of the copies of deployed bundles, in the same data directory."""
        return self.path.with_name("bundles")

    def stamp(self) -> tuple[int, ...]:
        """A value that changes with the file."""
        return stamp(self.path)

    def read(self) -> State:
        """The state, empty if there is no file.

        Raises
        ------
        RefusedError
            If the file is not a state file of this release.
        """
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            if data["schema"] != _SCHEMA:
                raise RefusedError(
                    f"{self.path}: has schema {data['schema']}, but this release reads {_SCHEMA}; move the file away "
                    "to start from the audit trail"
                )
            return _STATE.validate_python(data)
        except FileNotFoundError:
            return State()
        except (ValueError, KeyError, TypeError) as error:
            raise RefusedError(
                f"{self.path}: is not a state file; restore it, or move it away to start from the audit trail"
            ) from error

    def update(self, change: Callable[[State], State]) -> State:
        """Replace the state by `change(state)`, with no other change in between; `change` must not block."""
        with self._locked():
            before = self.read()
            after = change(before)
            if after != before:
                self._write(after)
        return after

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Not the state file itself, which is replaced by every change.
        with open(self.path.with_suffix(".lock"), "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _write(self, state: State) -> None:
        draft = self.path.with_suffix(".new")
        with open(draft, "w", encoding="utf-8") as file:
            json.dump({"schema": _SCHEMA, **_STATE.dump_python(state, mode="json")}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, self.path)
