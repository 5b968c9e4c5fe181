from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from darksight_core.bundle import Bundle
from darksight_core.errors import ConfigError
from darksight_core.explain import (
    POINTS,
    Chain,
    ClassifierError,
    Objective,
    attack,
    gradient,
    integrated,
    log_class,
    log_density,
    log_kde,
    nearness,
    smooth,
)
from darksight_core.gate.gate import Gate
from darksight_core.rows.schema import Decision
from darksight_core.rows.simplex import Floats
from darksight_core.runtime.policy import ScoringPolicy
from darksight_core.runtime.scorer import Scorer
from tests.support.bundles import make_bundle
from tests.support.maps import random_embedder

FEATURES = 6


def make_classifier(classes: int = 3, *, seed: int = 0) -> torch.nn.Module:
    """A small smooth network in float64."""
    generator = torch.Generator().manual_seed(seed)
    network = torch.nn.Sequential(torch.nn.Linear(FEATURES, 8), torch.nn.Tanh(), torch.nn.Linear(8, classes)).double()
    with torch.no_grad():
        for weight in network.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.float64))
    return network


def make_inputs(n: int = 5, *, seed: int = 0) -> Floats:
    """Inputs between 0 and 1."""
    return np.random.default_rng(seed).uniform(size=(n, FEATURES))


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    """A bundle of three classes."""
    return make_bundle()


def by_differences(function: Callable[[Floats], Floats], inputs: Floats, step: float = 1e-5) -> Floats:
    """Gradient of a function of rows, coordinate by coordinate."""
    found = np.empty_like(inputs)
    for column in range(inputs.shape[1]):
        shift = step * np.eye(inputs.shape[1])[column]
        found[:, column] = (function(inputs + shift) - function(inputs - shift)) / (2.0 * step)
    return found


def objectives(chain: Chain, bundle: Bundle) -> dict[str, Objective]:
    """Every kind of question."""
    return {
        "density": log_density(chain),
        "class": log_class(chain, 1),
        "kde": log_kde(bundle.kde),
        "point": nearness((1.0, -2.0)),
    }


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("kind", ["density", "class", "kde", "point"])
def test_gradient_is_the_derivative_of_the_value(bundle: Bundle, point: str, kind: str) -> None:
    """Finite differences of the whole chain, search and all, agree with the gradient."""
    chain = Chain(make_classifier(), bundle.embedder, point=point)
    objective, inputs = objectives(chain, bundle)[kind], make_inputs()

    found = gradient(chain, objective, inputs)

    expected = by_differences(lambda rows: objective(chain.points(torch.tensor(rows))).detach().numpy(), inputs)
    assert found.stationary.all()
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(found.heat, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


def test_the_refined_point_and_that_of_the_network_have_different_gradients(bundle: Bundle) -> None:
    """Which y is differentiated matters, so the choice has to be named."""
    inputs = make_inputs()
    refined, network = (Chain(make_classifier(), bundle.embedder, point=point) for point in POINTS)

    one, other = (gradient(chain, log_density(chain), inputs).heat for chain in (refined, network))

    assert np.abs(one - other).max() > 0.1 * np.abs(one).max()


def test_points_are_those_that_serve() -> None:
    """f_p is the embedder's own; the refined point is that of a search that has converged."""
    embedder = random_embedder(4, temperature=1.5, columns=(0, 2, 3, 5), n_inputs=6, refine_steps=80)
    classifier, inputs = make_classifier(6), torch.tensor(make_inputs(20))
    refined, network = (Chain(classifier, embedder, point=point) for point in POINTS)
    log_pi = refined.log_probs(inputs).detach().numpy()

    np.testing.assert_allclose(
        network.points(inputs).detach().numpy(), embedder.guess(np.exp(embedder.shown(log_pi))), atol=1e-9
    )
    np.testing.assert_allclose(refined.points(inputs).detach().numpy(), embedder.embed(log_pi)[0], atol=1e-9)


def test_values_are_columns_of_the_scorer(bundle: Bundle) -> None:
    """What is explained is what the scorer returns, where its few steps are enough."""
    steady = replace(bundle.embedder, refine_steps=80)
    chain, inputs = Chain(make_classifier(), steady), make_inputs()
    probs = chain.log_probs(chain.tensor(inputs)).exp().detach().numpy()
    scores = Scorer(steady, bundle.kde, bundle.outlier_score, bundle.calibration, compiled=False).score(probs)

    np.testing.assert_allclose(gradient(chain, log_density(chain), inputs).value, scores.log_density, atol=1e-6)
    np.testing.assert_allclose(gradient(chain, log_kde(bundle.kde), inputs).value, scores.log_kde, atol=1e-6)


def test_a_row_held_at_the_edge_of_the_map_is_not_stationary() -> None:
    """Where the search is stopped before an optimum the derivative does not exist, and this is said."""
    embedder = make_bundle().embedder
    near = replace(embedder, bound=5.5, anchors=0.5 * embedder.student.means)
    rows = torch.log_softmax(torch.tensor([[60.0, 0.0, 0.0], [1.0, 0.5, 0.0]], dtype=torch.float64), dim=1)

    assert Chain(lambda inputs: inputs, embedder).is_stationary(rows).tolist() == [True, True]
    assert Chain(lambda inputs: inputs, near).is_stationary(rows).tolist() == [False, True]


@pytest.mark.parametrize("point", POINTS)
def test_integrated_gradients_are_complete(bundle: Bundle, point: str) -> None:
    """Heat sums to the change from the baseline, better with more steps."""
    chain, inputs = Chain(make_classifier(), bundle.embedder, point=point), make_inputs(3)

    few, many = (
        integrated(chain, log_density(chain), inputs, baseline=inputs - 0.05, steps=steps) for steps in (2, 40)
    )

    assert many.change is not None
    assert many.gap is not None
    assert few.gap is not None
    assert np.abs(many.change).max() > 1e-4
    assert np.abs(many.gap).max() < 1e-3 * np.abs(many.change).max()
    assert np.abs(many.gap).max() < np.abs(few.gap).max()


def test_smooth_is_the_mean_of_noisy_gradients(bundle: Bundle) -> None:
    """Without noise it is the gradient; with it, the seed decides, and no other row does."""
    chain, inputs = Chain(make_classifier(), bundle.embedder), make_inputs(3)
    objective = log_density(chain)

    still = smooth(chain, objective, inputs, noise=0.0, samples=2)
    one, again, other, alone = (
        smooth(chain, objective, rows, samples=8, seed=seed).heat
        for rows, seed in ((inputs, 0), (inputs, 0), (inputs, 1), (inputs[:1], 0))
    )

    np.testing.assert_allclose(still.heat, gradient(chain, objective, inputs).heat)
    np.testing.assert_array_equal(one, again)
    assert not np.allclose(one, other)
    np.testing.assert_allclose(alone[0], one[0], atol=1e-9)


@pytest.mark.parametrize("lower", [False, True], ids=["in", "out"])
def test_attack_moves_the_density_within_budget_and_range(bundle: Bundle, lower: bool) -> None:
    """The serving scorer sees the density rise or fall, and no coordinate leaves its budget or the range."""
    steady = replace(bundle, embedder=replace(bundle.embedder, refine_steps=80))
    chain, policy, inputs = (
        Chain(make_classifier(), steady.embedder),
        ScoringPolicy.of(steady, compiled=False),
        make_inputs(8),
    )
    inputs[0, 0], inputs[1, 1] = 0.0, 1.0
    density = log_density(chain)
    wanted: Objective = (lambda points: -density(points)) if lower else density

    found = attack(chain, wanted, policy, inputs, budget=0.1, steps=15)

    assert (np.abs(found.inputs - inputs) <= 0.1 + 1e-12).all()
    assert found.inputs.min() >= 0.0
    assert found.inputs.max() <= 1.0
    np.testing.assert_allclose(found.moved, np.abs(found.inputs - inputs).max(axis=1))
    rise = found.after.log_density - found.before.log_density
    gained = -rise if lower else rise
    assert gained.min() >= -1e-6
    assert gained.max() > 0.05
    probs = chain.log_probs(chain.tensor(found.inputs)).exp().detach().numpy()
    np.testing.assert_allclose(found.after.log_density, policy.score(probs).log_density)


def test_a_gate_of_logits_is_told_them(bundle: Bundle) -> None:
    """The decisions are those on the classifier's own logits, batch by batch; without any nothing is decided."""
    chain, inputs = Chain(make_classifier(), bundle.embedder), make_inputs(130)
    rows = chain.tensor(inputs)
    logits = make_classifier()(rows).detach().numpy()
    gate = Gate(reject_score="max_logit", threshold=float(np.median(logits.max(axis=1))))
    policy = ScoringPolicy(Scorer.of(bundle, compiled=False), gate)

    found = chain.scored(policy, rows)

    accepted = logits.max(axis=1) > gate.threshold
    assert 0 < accepted.sum() < len(inputs)
    np.testing.assert_array_equal(found.decision == Decision.ACCEPT, accepted)
    unknown = replace(chain, classifier=lambda rows: make_classifier()(rows).softmax(dim=1), outputs="probs")
    with pytest.raises(ConfigError, match="needs logits"):
        unknown.scored(policy, rows)


def test_attack_reaches_for_a_point_and_repeats_under_its_seed(bundle: Bundle) -> None:
    """Inputs come nearer to a given point; the same seed gives the same inputs, more starts no worse ones."""
    chain, policy, inputs = (
        Chain(make_classifier(), bundle.embedder),
        ScoringPolicy.of(bundle, compiled=False),
        make_inputs(4),
    )
    target = np.array([0.0, 0.0])

    one, again, more = (
        attack(chain, nearness((0.0, 0.0)), policy, inputs, budget=0.2, steps=8, starts=starts, seed=3)
        for starts in (2, 2, 3)
    )

    np.testing.assert_array_equal(one.inputs, again.inputs)
    before, after, best = (np.hypot(*(scored.points - target).T) for scored in (one.before, one.after, more.after))
    assert after.mean() < 0.8 * before.mean()
    assert (best <= after + 1e-3).all()


@pytest.mark.parametrize(
    ("classifier", "outputs", "message"),
    [
        (lambda inputs: inputs[:, :4], "logits", "one output for each row and class"),
        (lambda inputs: inputs[:, 0], "logits", "one output for each row and class"),
        (lambda inputs: (inputs,), "logits", "not a tuple"),
        (lambda inputs: inputs[:, :3].softmax(dim=1), "logits", "they are probabilities"),
        (lambda inputs: inputs[:, :3], "probs", "not probabilities"),
        (lambda inputs: inputs[:, :3] / 0.0, "logits", "not finite"),
        (lambda inputs: inputs[:, :3].detach(), "logits", "no gradient"),
        (lambda inputs: inputs @ torch.ones(2, 3), "logits", "fails on inputs of shape"),
    ],
    ids=["classes", "shape", "tuple", "probs", "logits", "infinite", "gradient", "crash"],
)
def test_a_classifier_that_does_not_fit_is_named(
    bundle: Bundle, classifier: Callable[[Tensor], Tensor], outputs: str, message: str
) -> None:
    """What a classifier gives is checked before anything is made of it."""
    chain = Chain(classifier, bundle.embedder, outputs=outputs)

    with pytest.raises(ClassifierError, match=message):
        gradient(chain, log_density(chain), make_inputs())


def test_probabilities_explain_as_logits_do(bundle: Bundle) -> None:
    """A classifier with a softmax at its end has the gradient of the one without."""
    plain, inputs = make_classifier(), make_inputs()
    soft = Chain(torch.nn.Sequential(plain, torch.nn.Softmax(dim=1)), bundle.embedder, outputs="probs")
    hard = Chain(plain, bundle.embedder)

    np.testing.assert_allclose(
        gradient(soft, log_density(soft), inputs).heat, gradient(hard, log_density(hard), inputs).heat, atol=1e-7
    )


def test_inputs_and_options_that_cannot_work_are_refused(bundle: Bundle) -> None:
    """One sentence each."""
    chain, policy, inputs = (
        Chain(make_classifier(), bundle.embedder),
        ScoringPolicy.of(bundle, compiled=False),
        make_inputs(),
    )
    density = log_density(chain)

    with pytest.raises(ClassifierError, match="scale integers"):
        gradient(chain, density, np.ones((2, FEATURES), dtype=np.uint8))
    with pytest.raises(ClassifierError, match="row 1"):
        gradient(chain, density, np.array([[0.0] * FEATURES, [math.nan] * FEATURES]))
    with pytest.raises(ClassifierError, match="baseline"):
        integrated(chain, density, inputs, baseline=np.zeros(4))
    with pytest.raises(ConfigError, match="beyond 0 to 1"):
        attack(chain, density, policy, 2.0 * inputs, budget=0.1)
    with pytest.raises(ConfigError, match="budget"):
        attack(chain, density, policy, inputs, budget=0.0)
    with pytest.raises(ConfigError, match="not on the map"):
        log_class(chain, 7)
