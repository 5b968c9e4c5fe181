from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from darksight_core.evaluation.progress import Progress, silent
from darksight_core.fit.config import FitConfig
from darksight_core.fit.map.paper import Rates, fit_paper
from darksight_core.fit.map.placement import Local, Rows, Theta, rows_of
from darksight_core.map.student import Student, default_scale
from darksight_core.rows.simplex import kl_sym

CONFIG = FitConfig(method="paper", epochs=60, batch_rows=100)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """On arrays this small, threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_rows(*, n: int = 300, classes: int = 5, seed: int = 0) -> Rows:
    """Rows of a classifier that is mostly sure, with some mass on the classes next to its own."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=n)
    logits = 0.3 * rng.normal(size=(n, classes))
    logits[np.arange(n), labels] += 5.0
    logits[np.arange(n), (labels + 1) % classes] += 4.0 * rng.random(n)
    return rows_of(torch.tensor(logits.T, dtype=torch.float32))


def fit(
    rows: Rows, config: FitConfig = CONFIG, *, seed: int = 0, rates: Rates | None = None
) -> tuple[Theta, Tensor, list[float]]:
    """Fit with a generator of its own."""
    return fit_paper(rows, config, torch.Generator().manual_seed(seed), silent, rates=rates)


def unfitted_loss(rows: Rows, config: FitConfig = CONFIG) -> float:
    """Loss of the start, met in the one batch of the only epoch."""
    return fit(rows, replace(config, epochs=1, batch_rows=len(rows)))[2][0]


def test_loss_falls_far_below_that_of_the_start() -> None:
    """The method leaves less than a third of the loss that it began with."""
    rows = make_rows(classes=10)
    config = replace(CONFIG, epochs=120)

    theta, points, history = fit(rows, config)

    assert history[-1] < unfitted_loss(rows, config) / 3
    assert theta.means.shape == (1, 2, 10)
    assert points.shape == (1, 2, 300)


def test_last_loss_is_that_of_the_result_for_rows_in_their_order() -> None:
    """History ends with mean KL_sym of what is returned: the shuffling of batches has been undone."""
    rows = make_rows()

    theta, points, history = fit(rows)

    log_q = theta.to_student().log_posterior(points[0].T.double().numpy())
    assert history[-1] == pytest.approx(kl_sym(rows.log_pi.T.double().numpy(), log_q).mean(), rel=1e-5)
    assert len(history) == CONFIG.epochs + 1


def test_same_seed_gives_the_same_map_and_another_seed_another() -> None:
    """All randomness comes from the generator."""
    rows = make_rows()

    first, again, other = fit(rows, seed=1), fit(rows, seed=1), fit(rows, seed=2)

    assert torch.equal(first[0].means, again[0].means)
    assert torch.equal(first[1], again[1])
    assert first[2] == again[2]
    assert not torch.equal(first[1], other[1])


def torch_adam(rows: Rows, config: FitConfig, *, seed: int) -> tuple[Student, Tensor, list[float]]:
    """The method as one would write it: autograd of the student's formulas, torch's Adam over all points."""
    (classes, n), rates = rows.pi.shape, Rates()
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(2, classes, generator=generator)
    log_prior, log_spread = torch.zeros(classes), torch.full((classes,), np.log(2.0 * default_scale(classes) ** 2))
    points = means[:, rows.labels]
    leaves = [leaf.requires_grad_() for leaf in (means, log_prior, log_spread, points)]
    of_theta = torch.optim.Adam(
        [
            {"params": leaf, "lr": rate}
            for leaf, rate in zip(leaves, (rates.means, rates.prior, rates.means), strict=False)
        ]
    )
    of_points = torch.optim.Adam([points], lr=rates.points)

    def loss(columns: Tensor) -> Tensor:
        of_theta.zero_grad()
        of_points.zero_grad()
        part, spread = rows[columns], log_spread[:, None].exp()
        squares = (points[:, None, columns] - means[:, :, None]).square().sum(dim=0)
        joint = log_prior[:, None] - torch.log(spread) - 2.0 * torch.log1p(squares / spread)
        log_q = torch.log_softmax(joint, dim=0)
        mean = 0.5 * ((part.pi - log_q.exp()) * (part.log_pi - log_q)).sum(dim=0).mean()
        mean.backward()
        return mean.detach()

    history = []
    for _ in range(config.epochs):
        losses = []
        for columns in torch.randperm(n, generator=generator).split(config.batch_rows):
            losses.append(float(loss(columns)))
            of_points.step()
            of_theta.step()
        history.append(float(np.mean(losses)))
    student = Student(
        means.detach().T.numpy(), np.exp(0.5 * log_spread.detach().numpy()) / 2**0.5, log_prior.detach().numpy()
    )
    return student, points.detach(), history


def test_one_batch_is_adam_step_by_step() -> None:
    """When all rows are one batch, every step is that of torch's Adam on gradients found by autograd."""
    rows = make_rows()
    config = FitConfig(method="paper", scale="per-class", epochs=25, batch_rows=300)
    expected, expected_points, expected_history = torch_adam(rows, config, seed=3)

    theta, points, history = fit(rows, config, seed=3)

    student = theta.to_student()
    assert np.allclose(history[:-1], expected_history, atol=1e-5)
    assert np.allclose(student.means, expected.means, atol=1e-4)
    assert np.allclose(student.scales, expected.scales, atol=1e-4)
    assert np.allclose(student.log_prior, expected.log_prior, atol=1e-4)
    assert torch.allclose(points[0], expected_points, atol=1e-3)


def test_several_batches_are_as_good_as_adam_over_all_points() -> None:
    """A point touched once per epoch gets about as far as one that torch's Adam moves with every batch."""
    rows = make_rows()
    config = FitConfig(method="paper", scale="per-class", epochs=60, batch_rows=60)
    _, _, expected = torch_adam(rows, config, seed=5)

    _, _, history = fit(rows, config, seed=5)

    assert history[-2] == pytest.approx(expected[-1], rel=0.1)


def test_loss_is_that_of_the_plane() -> None:
    """The loss of the start equals KL_sym as `Local` has it."""
    rows, generator = make_rows(), torch.Generator().manual_seed(0)
    means = torch.randn(2, 5, generator=generator)
    student = Student(means.T.numpy(), np.full(5, default_scale(5)), np.zeros(5))

    local = Local.at(Theta.of(student), rows, means[None, :, rows.labels])

    assert unfitted_loss(rows) == pytest.approx(float(local.loss.mean()), abs=1e-5)


def test_printed_rates_stall() -> None:
    """With the rates of points and prior as the paper prints them, most of the loss is still there."""
    rows = make_rows(classes=10)
    config = replace(CONFIG, epochs=120)

    printed = fit(rows, config, rates=Rates(means=0.001, prior=0.005, points=1e-6))[2][-1]
    ours = fit(rows, config)[2][-1]

    assert printed > 3 * ours


@pytest.mark.parametrize(("scale", "distinct"), [("fixed", 1), ("shared", 1), ("per-class", 5)])
def test_scale_rule_decides_which_scales_move(scale: str, distinct: int) -> None:
    """Fixed scales stay at the paper's value, a shared one moves for all classes, free ones differ."""
    theta, _, _ = fit(make_rows(), replace(CONFIG, scale=scale))  # type: ignore[arg-type]  # parameters are strings

    scales = theta.to_student().scales
    assert len(np.unique(scales.round(5))) == distinct
    assert (scales[0] == pytest.approx(default_scale(5), abs=1e-4)) == (scale == "fixed")


def test_progress_is_reported_once_per_epoch() -> None:
    """Each report has the epoch and the loss met in it."""
    seen: list[Progress] = []

    config = replace(CONFIG, epochs=4)
    _, _, history = fit_paper(make_rows(), config, torch.Generator().manual_seed(0), seen.append)

    assert seen == [Progress("epoch", i + 1, 4, history[i]) for i in range(4)]


@pytest.mark.parametrize(("n", "classes"), [(1, 2), (7, 2), (101, 3)])
def test_few_rows_and_uneven_batches_stay_finite(n: int, classes: int) -> None:
    """A last batch of one row, or a single row at all, is no special case."""
    theta, points, history = fit(make_rows(n=n, classes=classes), replace(CONFIG, epochs=20))

    assert torch.isfinite(theta.means).all()
    assert torch.isfinite(points).all()
    assert np.isfinite(history).all()


def test_one_hot_rows_stay_finite() -> None:
    """Rows with probabilities at the floor pull points far out but not to infinity."""
    rows = rows_of(torch.eye(4).repeat(1, 50).clamp_min(1e-30).log())

    theta, points, history = fit(rows)

    assert torch.isfinite(points).all()
    assert torch.isfinite(theta.means).all()
    assert history[-1] < history[0]


def test_rows_are_left_as_they_are() -> None:
    """The fit does not write into its input."""
    rows = make_rows()
    before = rows.pi.clone(), rows.log_pi.clone()

    fit(rows, replace(CONFIG, epochs=3))

    assert torch.equal(rows.pi, before[0])
    assert torch.equal(rows.log_pi, before[1])
