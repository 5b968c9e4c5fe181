"""Lines of the log: one JSON object each, bounded, whatever a caller sends."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from darksight_service.errors import RequestError, report_error
from darksight_service.http.api.events import EventAnswer
from darksight_service.http.problems import HttpError
from darksight_service.http.requests import HttpCall, Request
from darksight_service.metrics.processes import ProcessCounts
from darksight_service.report.references.names import resolve
from darksight_service.telemetry.logging import _JsonLines

from darksight_core.errors import DarkSightError
from darksight_core.rows.tags import find_problem

# Outside of the tree: pytest keeps the lines of that, and cannot pass all texts between its processes.
LOG = logging.Logger("darksight.test")
LONGEST = 150_000
"""A stack and a few fields, six characters for each of theirs."""

HOSTILE = {
    "script": "</script><script>alert(1)</script>",
    "quotes": "'\"; DROP TABLE point; --",
    "newlines": '\n{"event": "forged"}\r\n\x0b\x0c\x85\u2028\u2029',
    "large": "x" * (1 << 20),
    "large escapes": "\n\u202e" * (1 << 18),
    "bidirectional": "a\u202egnp.b\u2066\u200f",
    "formula": "=HYPERLINK(1)",
    "terminal": "\x1b[2J\x9b2J\x07",
    "surrogate": "a\ud800b",
}


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What the log has at the level `debug`."""
    logger, stream = logging.getLogger("darksight"), io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_JsonLines("worker"))
    level = logger.level
    logger.setLevel("DEBUG")
    for each in (logger, LOG):
        each.addHandler(handler)
    yield stream
    for each in (logger, LOG):
        each.removeHandler(handler)
    logger.setLevel(level)


def refuse_event(text: str, folder: Path) -> None:
    """An event with this text wherever it can be."""
    for names in ({}, {"model": text}):
        for body in (b"{", json.dumps({text: text}).encode(), json.dumps({"predictions": text}).encode()):
            headers = {
                "ce-specversion": "1.0",
                "ce-id": "1",
                "ce-source": text,
                "ce-type": "org.kubeflow.serving.inference.response",
                "ce-inferenceservicename": text,
                "content-type": "application/json",
            }
            request = Request(names, b"", body, {name.encode(): value for name, value in headers.items()})
            answer = EventAnswer(None, {}, lambda _: (), ProcessCounts(folder, 0))  # type: ignore[arg-type]  # Score is not reached
            with pytest.raises((DarkSightError, HttpError)):
                answer(request, HttpCall())


def refuse_tags(text: str, folder: Path) -> None:
    """A call with this key, and with this value."""
    for tags in ({text: "1"}, {"camera": text}, {"reference": text}):
        report_error(RequestError(f"tags: {find_problem(tags)}", field="tags"), LOG, method="Score")


def refuse_reference(text: str, folder: Path) -> None:
    """A reference that is not shown."""
    for reference in (text, f"../{text}", f"https://{text}"):
        report_error(RequestError(f"reference: {resolve(reference, (), has_folder=False).problem}"), LOG)


def fail(text: str, folder: Path) -> None:
    """A call that fails with this text in its error."""
    report_error(ValueError(text), LOG, method=text)
    try:
        raise ValueError(text)
    except ValueError:
        LOG.exception("scoring_failed", extra={"model": text, "sizes": [text, text]})
    LOG.warning(text)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("log", [refuse_event, refuse_tags, refuse_reference, fail])
def test_hostile_texts_are_bounded_fields_of_one_line(
    log: Callable[[str, Path], None], text: str, written: io.StringIO, tmp_path: Path
) -> None:
    """No text of a caller starts a line, turns the direction of a terminal or fills a disk."""
    log(text, tmp_path)

    lines = written.getvalue().splitlines()
    assert lines
    assert all({"time", "level", "process", "event"} <= json.loads(line).keys() for line in lines)
    assert all(line.isascii() and line.isprintable() for line in lines)
    assert max(map(len, lines)) < LONGEST


def test_short_fields_are_written_whole(written: io.StringIO) -> None:
    """Texts of any language, numbers and lists come back as they were."""
    facts = {"model": "Größe 数字", "rows": 3, "share": 0.5, "sizes": [1, 2], "none": None}

    LOG.info("points_pruned", extra=facts)

    found = json.loads(written.getvalue())
    assert found.items() >= facts.items()
    assert found["event"] == "points_pruned"
