"""The arithmetic of capacity: costs are found again, predictions follow from them, and sizing keeps its promises."""

from __future__ import annotations

import pytest

from tests.bench.capacity import BUSY, FIGURES, HEADER, Costs, Load, calibrated, cells

LOADS = (Load(0, 1), Load(800, 1), Load(300, 32), Load(100, 256))
COSTS = Costs(
    idle=dict.fromkeys(FIGURES, 0.004),
    call=dict(zip(FIGURES, (500e-6, 20e-6, 0.0, 0.0, 0.0), strict=True)),
    batch=dict(zip(FIGURES, (300e-6, 40e-6, 0.0, 0.0, 0.0), strict=True)),
    row=dict(zip(FIGURES, (4e-6, 1e-6, 2e-6, 160.0, 180.0), strict=True)),
)


def test_costs_are_found_from_what_they_make() -> None:
    """Calibration on figures that follow the model gives the model back."""
    found = calibrated({load: COSTS.predict(load) for load in LOADS})

    for part in ("idle", "call", "batch", "row"):
        assert getattr(found, part) == pytest.approx(getattr(COSTS, part), rel=1e-6, abs=1e-9)


def test_no_cost_is_negative_whatever_was_measured() -> None:
    """A load that took less than being idle is noise, and so is a large batch that is cheaper than a small one."""
    measured = {load: dict.fromkeys(FIGURES, 0.01 / (1 + n)) for n, load in enumerate(LOADS)}
    measured[LOADS[2]] = dict.fromkeys(FIGURES, 5.0)
    found = calibrated(measured)

    assert min(cost for part in (found.call, found.batch, found.row) for cost in part.values()) >= 0.0


def test_a_prediction_is_linear_in_calls_and_rows_of_a_size() -> None:
    """Twice the load costs twice as much beyond what is there without any."""
    once, twice, idle = (COSTS.predict(load) for load in (Load(50, 10), Load(100, 10), Load(0, 10)))

    for name in FIGURES:
        assert twice[name] - idle[name] == pytest.approx(2.0 * (once[name] - idle[name]))


@pytest.mark.parametrize("size", [1, 32, 256])
@pytest.mark.parametrize("predictions", [1_000, 1_000_000])
def test_sizing_has_cores_enough(predictions: int, size: int) -> None:
    """No process is planned to be busier than it should be, and there are three replicas at least."""
    row = dict(zip(HEADER, cells(COSTS, predictions, size), strict=True))
    used = COSTS.predict(Load(predictions / size, size), replicas=0)
    workers, replicas = row["workers (cores)"], row["replicas, at least"]

    assert isinstance(workers, int)
    assert isinstance(replicas, int)
    assert used[FIGURES[0]] <= BUSY * workers + 1e-9
    assert used[FIGURES[1]] <= BUSY * replicas + 1e-9
    assert workers >= replicas >= 3
