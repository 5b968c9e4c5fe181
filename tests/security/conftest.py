"""A service that the files about its callers attack one after the other: it takes several seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from darksight_service.control.tokens import make_token

from tests.integration.test_service import gated_bundle
from tests.support.servers import Server, running_server, wait_until

SCOPES = {
    "gateway": ["score", "report"],
    "other": ["score"],
    "reader": ["read"],
    "second": ["read"],
    "operator": ["read", "admin", "score", "report"],
}
# Soft and hard limit of open files, and the usual mask of a shell, under which everybody may read new files.
FEW_FILES = ("sh", "-c", 'umask 022 && ulimit -S -n 256 && ulimit -H -n 1024 && exec "$@"', "sh")
IDLE_SECONDS = 8.0


@pytest.fixture(scope="package")
def tokens() -> tuple[dict[str, str], str]:
    """Tokens by name, and their file."""
    made = {name: make_token(name, scopes) for name, scopes in SCOPES.items()}
    return {name: secret for name, (secret, _) in made.items()}, "".join(token.line() for _, token in made.values())


@pytest.fixture(scope="package")
def attacked(tokens: tuple[dict[str, str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service of one worker that wants tokens, with all its doors, and that may open few files."""
    folder = tmp_path_factory.mktemp("service")
    (folder / "tokens").write_text(tokens[1])
    bundle = gated_bundle(folder / "digits.safetensors")
    variables = {
        "DARKSIGHT_TOKENS_FILE": str(folder / "tokens"),
        "DARKSIGHT_STREAM_IDLE_SECONDS": str(IDLE_SECONDS),
    }
    options = ("--workers", "1", "--explorer-port", "0", "--api-port", "0")
    data_dir = folder / "state" / "data"
    with running_server({"digits": bundle}, data_dir, *options, environment=variables, run_by=FEW_FILES) as running:
        wait_until(lambda: "explorer" in running.children(), what="the explorer")
        yield running
