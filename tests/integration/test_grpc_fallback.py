"""The service on a gRPC whose private parts have changed: tests of `test_service` on the ordinary way of a call."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.integration.test_service import (  # noqa: F401  # tests and fixtures that run here, too
    bundles,
    channel,
    client,
    test_a_bad_row_can_be_a_result_and_leaves_the_others_alone,
    test_a_stream_answers_in_order_and_goes_on_after_a_bad_request,
    test_an_unknown_method_is_unimplemented,
    test_bad_input_is_refused_by_name,
    test_every_method_of_the_protos_is_served,
    test_health_is_told_by_server_and_by_model,
    test_points_are_in_the_store_soon_and_outcomes_find_them,
    test_the_service_says_what_the_bundle_says,
)
from tests.support.servers import Server, running_server

CHANGED = Path(__file__).parents[1] / "support" / "changed_grpc"


@pytest.fixture(scope="module")
def server(bundles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:  # noqa: F811
    """A service of one worker whose pool does not know its gRPC."""
    data_dir = tmp_path_factory.mktemp("data")
    path = os.pathsep.join(filter(None, (str(CHANGED), os.environ.get("PYTHONPATH", ""))))
    options = ("--workers", "1", "--bundle-dir", str(bundles["first"].parent))
    with running_server({"digits": bundles["first"]}, data_dir, *options, environment={"PYTHONPATH": path}) as running:
        yield running


def test_the_log_says_that_grpc_has_changed(server: Server) -> None:
    """Once for each worker, with the version."""
    (event,) = server.events("grpc_internals_changed")

    assert event["grpc"] == grpc.__version__
