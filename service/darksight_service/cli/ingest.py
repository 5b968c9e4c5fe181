"""`darksight ingest`: let a running service score and store the predictions of logs, each once.

The id of a batch is made from the model, the name of the file, the number and the content of its first row, and a day.
Row r of a batch has the r-th id after it, and the store ignores ids that it has. So the same command can be run again,
after an interruption or when rows were appended to the file.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

from cyclopts import Parameter
from darksight_client import InvalidRequest
from tqdm import tqdm

from darksight_core.errors import ConfigError
from darksight_core.predictions import Kind, Predictions, TokenClasses, iter_lines, iter_predictions
from darksight_service.cli.connection import CONNECTION, Credentials, class_names_of, connect
from darksight_service.cli.console import on_interrupt, print_json
from darksight_service.cli.options import AsJson, Logits, Quiet
from darksight_service.errors import RemoteError
from darksight_service.store.ids import DAY_MS, make_batch_id

__all__ = ["ingest"]

_STDIN = "-"
_SECONDS = 120.0
_CHUNK_ROWS = 1000
# Half of the default limit of a message, in bytes of values and of an id.
_BATCH_BYTES, _ID_BYTES = 2 << 20, 210
# A service takes batch ids of the last seven days.
_MAX_DAYS = 6


@dataclass(frozen=True, slots=True)
class _Batch:
    """Rows that are sent together."""

    rows: Predictions
    first_row: int
    name: str
    day_ms: int

    def id(self, model: str) -> UUID:
        rows = self.rows
        # What follows the first row may change when a file grows; what comes through a pipe does not.
        content = rows.probs.tobytes() if self.name == _STDIN else rows.probs[:1].tobytes()
        parts = (model, self.name, str(self.first_row), rows.ids[0] if rows.ids else "")
        digest = hashlib.sha256("\0".join(parts).encode() + b"\0" + content).digest()
        return UUID(bytes=make_batch_id(self.day_ms, digest[:7]))


@dataclass(slots=True)
class _Sent:
    """What was sent of a file."""

    file: str
    day: str = ""
    rows: int = 0
    batches: int = 0
    accepted: int = 0


def ingest(
    model: str,
    files: Annotated[list[str], Parameter(allow_leading_hyphen=True)],
    /,
    *,
    logits: Logits = False,
    day: str | None = None,
    probe: bool = False,
    server: Annotated[str, Parameter(group=CONNECTION, metavar="HOST:PORT")] = "localhost:8081",
    credentials: Annotated[Credentials, Parameter(name="*", group=CONNECTION)] = Credentials(),
    json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Send the predictions in logs to a running service.

    The service scores, stores and counts them, as if their callers had sent them. Rows that it has already are not
    stored again, so an interrupted command can be repeated, and a log that grows can be sent again and again. Rows
    are recognized by the name of the file, their number, the first row of their thousand, and the day.

    Parameters
    ----------
    model
        Name of the model.
    files
        Logs: .jsonl with an object per line, which has probs or logits, a list of numbers, or top_logprobs of a
        language model, and perhaps an id; .parquet, .csv, .npz or .npy as for other commands; - for JSON lines from the
        standard input.
    day
        Day that the ids of rows have, such as 2036-05-01, of the last six days. Default: the day on which a file was
        changed last, if it is one of these, and else today. Give the day of the first run to repeat it on another one
        with a file that was changed since.
    probe
        Let the service score the rows, and neither store nor count them; prints how many it accepts.
    server
        Service to send to.
    """
    today = int(time.time() * 1000.0) // DAY_MS
    given = None if day is None else _read_day(day, today)
    kind: Kind | None = "logits" if logits else None
    found: list[_Sent] = []
    with (
        on_interrupt("rows sent so far are stored; run the same command to send the others"),
        tqdm(desc="sending", unit=" rows", unit_scale=True, file=sys.stderr, disable=quiet) as bar,
        connect(server, credentials, _SECONDS) as client,
    ):
        for file in files:
            sent = _Sent(file)
            classes = partial(class_names_of, client, model)
            for batch in _batches(file, kind, classes, today if given is None else given, is_given=given is not None):
                rows = batch.rows
                try:
                    scored = client.score(
                        model,
                        rows.rows if rows.logits is None else rows.logits,
                        logits=rows.logits is not None,
                        prediction_ids=rows.ids,
                        batch_id=batch.id(model),
                        tags=rows.tag_dicts(),
                        probe=probe,
                    )
                except InvalidRequest as error:
                    where = f"{file}, rows {batch.first_row} to {batch.first_row + len(rows) - 1}"
                    raise RemoteError(f"{where}: {error}") from error
                if not (scored.recorded or probe):
                    raise RemoteError(
                        f"{file}, row {batch.first_row}: the service could not write the rows; run the command again"
                    )
                sent.day = datetime.fromtimestamp(batch.day_ms / 1000.0, UTC).strftime("%Y-%m-%d")
                sent.rows += len(rows)
                sent.batches += 1
                sent.accepted += int(scored.accepted.sum())
                bar.update(len(rows))
            found.append(sent)
    if json:
        print_json({"model": model, "rows": sum(each.rows for each in found), "files": [*map(asdict, found)]})
    else:
        for each in found:
            end = f"{each.accepted:,} accepted; nothing was stored" if probe else f"day {each.day}"
            print(f"{each.file}: {each.rows:,} rows, {end}")


def _batches(file: str, kind: Kind | None, classes: TokenClasses, day: int, *, is_given: bool) -> Iterator[_Batch]:
    """The rows of a file in batches whose borders depend on the number of classes alone."""
    options: dict[str, Any] = {"kind": kind, "token_classes": classes, "chunk_rows": _CHUNK_ROWS}
    if file == _STDIN:
        name = _STDIN
        chunks = iter_lines(sys.stdin.buffer, source="stdin", **options, keep_logits=True)
    else:
        path = Path(file)
        name = path.name
        chunks = iter_predictions(path, **options, keep_logits=True)
        if not is_given and path.is_file():
            changed = int(path.stat().st_mtime * 1000.0) // DAY_MS
            day = changed if day - _MAX_DAYS <= changed <= day else day
    first_row = 0
    for chunk in chunks:
        step = max(min(_CHUNK_ROWS, _BATCH_BYTES // (4 * chunk.n_classes + _ID_BYTES)), 1)
        start = 0
        while start < len(chunk):
            # A border is at every multiple of `step`, and where a chunk of the file ends.
            stop = min(start + step - first_row % step, len(chunk))
            part = chunk.take(range(start, stop))
            first_row += stop - start
            start = stop
            yield _Batch(part, first_row - len(part), name, day * DAY_MS)


def _read_day(text: str, today: int) -> int:
    try:
        moment = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise ConfigError(f"--day is {text!r}; it must be a day such as 2036-05-01") from None
    day = int(moment.timestamp()) * 1000 // DAY_MS
    if not today - _MAX_DAYS <= day <= today:
        raise ConfigError(f"--day is {text}; it must be one of the last {_MAX_DAYS} days, or today")
    return day
