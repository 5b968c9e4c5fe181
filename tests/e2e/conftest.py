"""What tests of this folder share: a PostgreSQL, and a service with an explorer and a browser."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
from darksight_client import Client
from darksight_service.cli import main
from darksight_service.report.references.pictures import encode_png
from numpy.typing import NDArray
from playwright.sync_api import Browser, Page

from darksight_core.bundle import write_bundle
from darksight_core.gate.gate import Gate
from darksight_core.guarantees.conformal import cutoff
from darksight_core.guarantees.prediction_sets import PredictionSets
from tests.support.browser import running_browser, watched_page
from tests.support.bundles import make_bundle
from tests.support.postgres import Postgres, running_postgres
from tests.support.servers import Server, running_server, wait_until

Refusal: TypeAlias = Callable[[Path, Sequence[str]], str]

CLASSES = 5
ROWS = 300
HOSTILE = (
    "javascript:alert(1)",
    "https://evil.example/x.png",
    "<img src=x onerror=alert(1)>",
    "\u202egnp.exe",
    "page.txt",
)


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refusal:
    """Runs a command in a folder and gives what it says when it ends with 2; here, where torch is imported already."""

    def run(folder: Path, arguments: Sequence[str]) -> str:
        monkeypatch.chdir(folder)
        with pytest.raises(SystemExit) as end:
            sys.exit(main(arguments))
        assert end.value.code == 2
        return capsys.readouterr().err

    return run


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A server that keeps what it has committed when it is killed; each test takes databases of its own."""
    with running_postgres() as server:
        yield server


@pytest.fixture
def url(postgres: Postgres) -> str:
    """A migrated database."""
    return postgres.migrated_database()


@dataclass(frozen=True, slots=True)
class Explored:
    """A service whose model `digits` has had traffic, part of it labelled; `probs` are the rows sent.

    Each row refers to a picture, but for the last ones, whose references are `HOSTILE`. `names` are the prediction ids.
    """

    server: Server
    probs: NDArray[np.float32]
    labels: NDArray[np.int64]
    names: tuple[str, ...]

    @property
    def url(self) -> str:
        """Where the explorer is."""
        return self.server.explorer_url


@pytest.fixture(scope="session")
def explored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Explored]:
    """A service with an explorer, a model `digits` and stored points."""
    folder = tmp_path_factory.mktemp("explored")
    bundle = make_bundle(600, CLASSES)
    sets = PredictionSets(0.95, limit=0.9, penalty=0.0, n=50)
    gate = Gate(outlier=cutoff(len(bundle.calibration), 0.05), reject_score="msp", threshold=-1.0, sets=sets)
    promise = {"kind": "accuracy", "promised": 0.97, "delta": 0.05, "promise": "for the test", "feasible": True}
    write_bundle(folder / "digits.safetensors", bundle.with_gate(gate, {"outlier": None, "reject": promise}))
    # Where a server that is told nothing else looks for bundles to deploy.
    bundles = folder / "data" / "bundles"
    bundles.mkdir(parents=True)
    write_bundle(bundles / "other.safetensors", make_bundle(600, CLASSES, seed=1))
    rng = np.random.default_rng(1)
    probs = rng.dirichlet(np.full(CLASSES, 0.4), ROWS).astype(np.float32)
    labels = np.array([rng.choice(CLASSES, p=row / row.sum()) for row in probs.astype(np.float64)])
    pictures = folder / "pictures"
    pictures.mkdir()
    for row in range(ROWS):
        shade = np.add.outer(np.arange(48), np.arange(48)) + row * 5
        (pictures / f"{row}.png").write_bytes(encode_png(np.stack([shade, shade * 2, 255 - shade], 2).astype(np.uint8)))
    (pictures / "page.txt").write_text("<script>alert(1)</script> \u202ecba", encoding="utf-8")
    references = [*(f"{row}.png" for row in range(ROWS - len(HOSTILE))), *HOSTILE]
    options = ("--workers", "1", "--explorer-port", "0")
    environment = {"DARKSIGHT_REFERENCE_DIR": str(pictures)}
    models = {"digits": folder / "digits.safetensors"}
    with running_server(models, folder / "data", *options, environment=environment) as server:
        with Client(server.grpc_target, timeout_seconds=60.0) as client:
            scored = client.score("digits", probs, tags=[{"reference": each} for each in references])
            client.report("digits", list(scored.prediction_ids)[:100], labels[:100].tolist())
            wait_until(lambda: sum(point.label is not None for point in client.points("digits", page_size=ROWS)) == 100)
        wait_until(lambda: "explorer" in server.children(), 120, "the explorer")
        yield Explored(server, probs, labels, scored.prediction_ids)


# Ended with its file: as long as Playwright is there it has an event loop, beside which other tests can run none.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The system's Chromium."""
    with running_browser() as found:
        yield found


@pytest.fixture
def page(explored: Explored, browser: Browser) -> Iterator[Page]:
    """A page of the explorer that must keep its console empty and ask nobody else."""
    with watched_page(browser, explored.url) as found:
        yield found
