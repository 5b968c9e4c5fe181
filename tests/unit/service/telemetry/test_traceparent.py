"""The header that names a trace."""

from __future__ import annotations

import pytest
from darksight_service.telemetry.traceparent import read_trace_id, trace_of

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    "header", [f"00-{TRACE}-{PARENT}-01", f"cc-{TRACE}-{PARENT}-00", f"01-{TRACE}-{PARENT}-01-more"]
)
def test_a_valid_header_has_a_trace_id(header: str) -> None:
    """Also one of a later version, which may have more fields."""
    assert read_trace_id(header).hex() == TRACE


@pytest.mark.parametrize(
    "header",
    [
        "",
        TRACE,
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{TRACE}-{PARENT}-01\n",
        f"00-{TRACE}-{PARENT}",
        f"00-{TRACE[:-1]}é-{PARENT}-01",
    ],
)
def test_any_other_header_is_ignored(header: str) -> None:
    """As the standard asks."""
    assert read_trace_id(header) == b""


def test_the_trace_of_a_call_is_in_its_metadata() -> None:
    """The first of the name; without one there is none."""
    metadata = [("user-agent", "x"), ("traceparent", f"00-{TRACE}-{PARENT}-01"), ("key-bin", b"\0")]

    assert trace_of(metadata).hex() == TRACE
    assert trace_of(metadata[:1]) == b""
    assert trace_of([("traceparent", b"\xff")]) == b""
