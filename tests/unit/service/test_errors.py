from __future__ import annotations

import darksight_service.errors as service_errors
import pytest
from darksight_service.errors import STATUSES, statuses_of

import darksight_core.bundle
import darksight_core.explain
import darksight_core.fit.distributed.process_group
import darksight_core.predictions
import darksight_core.runtime.scorer  # all of these for their errors
from darksight_core.errors import DarkSightError
from darksight_core.predictions.defects import defect


def every_error(kind: type[DarkSightError] = DarkSightError) -> list[type[DarkSightError]]:
    """All classes of the tree."""
    return [kind, *(each for child in kind.__subclasses__() for each in every_error(child))]


# Programs rely on these codes: a changed line is a change of the API.
CODES = {
    "AbandonedError": "abandoned",
    "AuditError": "audit",
    "BulkError": "bulk",
    "BundleError": "bundle",
    "ClassifierError": "classifier",
    "ConfigError": "config",
    "DarkSightError": "darksight",
    "FitError": "fit",
    "ForbiddenError": "forbidden",
    "MetricFileError": "metric_file",
    "NotFoundError": "not_found",
    "OverloadedError": "overloaded",
    "PredictionsError": "predictions",
    "ProcessGroupError": "process_group",
    "RecordError": "record",
    "RefusedError": "refused",
    "RemoteError": "remote",
    "RequestError": "request",
    "SchemaMismatchError": "schema_mismatch",
    "SettingsError": "settings",
    "ShapeError": "shape",
    "SpoolError": "spool",
    "StoreError": "store",
    "StoreUnavailableError": "store_unavailable",
    "UnauthenticatedError": "unauthenticated",
}


def test_every_error_has_a_stable_code_of_its_own():
    """Codes are declared class by class, differ from each other, and stay as they are."""
    tree = every_error()
    codes = {kind.__name__: vars(kind).get("code") for kind in tree}

    assert None not in codes.values()
    assert len(set(codes.values())) == len(tree)
    assert {name: codes.get(name) for name in CODES} == CODES


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__name__)
def test_every_error_has_a_message_and_details(kind: type[DarkSightError]):
    """One shape, whatever the class."""
    error = kind("it went wrong", field="model")

    assert (str(error), error.message, error.details) == ("it went wrong", "it went wrong", {"field": "model"})


def test_a_subclass_has_the_statuses_of_its_parent():
    """The table names a class once for gRPC and HTTP; any other error is internal."""
    assert statuses_of(defect("predictions_row_sum", "x", "y")) == ("INVALID_ARGUMENT", 400)
    assert statuses_of(darksight_core.runtime.scorer.ShapeError("x")) == ("INVALID_ARGUMENT", 400)
    assert statuses_of(service_errors.StoreError("x")) == statuses_of(KeyError("x")) == ("INTERNAL", 500)
    assert set(STATUSES) <= set(every_error())
