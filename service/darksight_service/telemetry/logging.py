"""Logs of the service: one JSON object per line on stderr, with the event and its fields.

Texts of callers may be part of a field. So a line has ASCII characters only, others are JSON escapes, and long
fields are shortened in their middle.

Warnings and uncaught exceptions are lines of the log too. Warnings and errors of one event are limited to 20 lines per
second; the next line says how many were left out (`left_out`). SIGHUP switches between the configured level and
`debug`.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
from collections import Counter
from datetime import UTC, datetime
from types import TracebackType

__all__ = ["set_up_logs", "switch_debug"]

_log = logging.getLogger("darksight")
_level = "INFO"

# Callers can cause warnings, and must not fill a disk with them.
_MAX_LINES = 20

_MAX_FIELD = 2_000
_MAX_TRACE = 16_000

_STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime", "taskName"}


class _JsonLines(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": self._process,
            "event": _shortened(record.getMessage(), _MAX_FIELD),
        }
        line |= {name: _field(value) for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            line["trace"] = _shortened(self.formatException(record.exc_info), _MAX_TRACE)
        return json.dumps(line, default=str)


def _field(value: object) -> object:
    """A value for JSON; as a text if it is large."""
    if isinstance(value, str):
        return _shortened(value, _MAX_FIELD)
    text = json.dumps(value, default=str)
    return value if len(text) <= _MAX_FIELD else _shortened(text, _MAX_FIELD)


def _shortened(text: str, longest: int) -> str:
    """A text without its middle if it is too long: of a stack the start and the error at its end are needed."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]} ... {len(text) - 2 * half:,} characters left out ... {text[-half:]}"


class _RateLimit(logging.Filter):
    """Lets through `_MAX_LINES` warnings of one event per second; the next warning says how many were left out."""

    def __init__(self) -> None:
        super().__init__()
        self._second = 0
        self._lines: Counter[tuple[str, str]] = Counter()
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        if int(record.created) != self._second:
            self._second = int(record.created)
            self._lines.clear()
        event = record.name, str(record.msg)
        self._lines[event] += 1
        if self._lines[event] > _MAX_LINES:
            self._left_out += 1
            return False
        if self._left_out:
            record.left_out, self._left_out = self._left_out, 0
        return True


def set_up_logs(process: str, level: str) -> None:
    """Write the log of this process to stderr.

    Parameters
    ----------
    process
        Name of the process, in every line.
    level
        `debug`, `info`, `warning` or `error`.
    """
    global _level
    _level = level.upper()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines(process))
    handler.addFilter(_RateLimit())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    _log.setLevel(_level)
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = lambda args: _log_uncaught(
        args.exc_type, args.exc_value or args.exc_type(), args.exc_traceback
    )
    signal.signal(signal.SIGHUP, lambda *_: switch_debug())


def switch_debug() -> None:
    """Set the level to `debug`, or back to the configured one."""
    _log.setLevel(_level if _log.level == logging.DEBUG else "DEBUG")


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    _log.critical("uncaught_exception", exc_info=(kind, error, trace))
