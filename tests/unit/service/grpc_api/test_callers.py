"""Callers with a client certificate."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from darksight_service.control.tokens import TokenFile, certificate_token
from darksight_service.errors import UnauthenticatedError
from darksight_service.grpc_api.callers import GrpcCall
from darksight_service.metrics.processes import ProcessCounts
from darksight_service.operations.callers import Callers


@pytest.mark.parametrize("names", [[], [b"one", b"two"], [b""]])
def test_a_certificate_without_a_single_name_is_told_what_to_do(tmp_path: Path, names: list[bytes]):
    """The message names the cause; there is no line that could be added for it."""
    (tmp_path / "tokens").write_text(certificate_token("one", ["score"]).line())
    counts = ProcessCounts(tmp_path / "counts", 0)
    callers = Callers(TokenFile(tmp_path / "tokens"), has_certificates=True, counts=counts)
    context = SimpleNamespace(
        auth_context=lambda: {"x509_common_name": names}, invocation_metadata=tuple, is_active=bool
    )

    with pytest.raises(UnauthenticatedError, match="no single common name; send a token"):
        _ = GrpcCall(context, callers, "score").caller  # type: ignore[arg-type]
