"""`darksight explain`: which parts of an input decide its point on the map, and how small a change moves it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import numpy as np
from cyclopts import Group, Parameter
from numpy.typing import NDArray

from darksight_core.bundle import Bundle, read_bundle
from darksight_core.errors import ConfigError, did_you_mean
from darksight_core.rows.schema import Decision, ScoredBatch
from darksight_core.runtime.policy import ScoringPolicy
from darksight_service.cli.child import LimitOptions, run_limited
from darksight_service.cli.console import Bars, on_interrupt, print_json, print_table, require, say
from darksight_service.cli.options import INPUT, OUTPUT, AsJson, Overwrite, Pair, Quiet
from darksight_service.scoring.files.arrays import read_array
from darksight_service.scoring.files.tables import atomic, check_output

if TYPE_CHECKING:
    from darksight_core.explain import Attack, Attribution, Chain, Objective

__all__ = ["AttackOptions", "HeatOptions", "explain"]

Columns: TypeAlias = dict[str, NDArray[Any]]

_NAMES = ("inputs", "images", "x")
_METHODS = {"smooth": "smoothed gradient", "gradient": "gradient", "integrated": "integrated gradients"}
_VALUES = {"density": "log P(y; θ)", "kde": "log KDE", "class": "the log probability of the class"}
_HEAT = Group("Heat map", sort_key=2)
_ATTACK = Group("Attack", sort_key=3)
_LIMITS = Group("Limits", sort_key=4)


@dataclass(frozen=True, slots=True)
class HeatOptions:
    """What is explained, and how.

    Parameters
    ----------
    of
        Value to explain: the log density of the map, the log density of the KDE, or the log probability of a class.
    class_name
        Class for --of class. Default: the predicted class.
    method
        SmoothGrad, the plain gradient, or integrated gradients.
    point
        Point to differentiate: refined is the one that is served, network is the output of f_p alone.
    baseline
        Value of all coordinates where integrated gradients start.
    steps
        Steps of integrated gradients.
    samples
        Noisy copies of SmoothGrad.
    noise
        Noise of SmoothGrad, as a share of the range of an input.
    """

    of: Literal["density", "kde", "class"] = "density"
    class_name: Annotated[str | None, Parameter(name="--class")] = None
    method: Literal["smooth", "gradient", "integrated"] = "smooth"
    point: Literal["refined", "network"] = "refined"
    baseline: float = 0.0
    steps: int = 64
    samples: int = 32
    noise: float = 0.1


@dataclass(frozen=True, slots=True)
class AttackOptions:
    """How inputs are changed, if they are.

    Parameters
    ----------
    attack
        Raise (in) or lower (out) the explained value.
    reach
        Move the inputs towards this point of the map.
    budget
        Largest change of a coordinate.
    range
        Smallest and largest valid value of a coordinate.
    attack_steps
        Steps of an attack.
    starts
        Starts of an attack; all but the first are random.
    """

    attack: Literal["in", "out"] | None = None
    reach: Annotated[Pair | None, Parameter(metavar="X,Y")] = None
    budget: float | None = None
    range: Annotated[Pair, Parameter(metavar="LOW,HIGH")] = (0.0, 1.0)
    attack_steps: int = 40
    starts: int = 1


def explain(
    bundle: Path,
    module: Path,
    inputs: Path,
    /,
    *,
    outputs: Annotated[Literal["logits", "probs"], Parameter(group=INPUT)] = "logits",
    rows: Annotated[int, Parameter(group=INPUT)] = 64,
    heat: Annotated[HeatOptions, Parameter(name="*", group=_HEAT)] = HeatOptions(),
    change: Annotated[AttackOptions, Parameter(name="*", group=_ATTACK)] = AttackOptions(),
    limits: Annotated[LimitOptions, Parameter(name="*", group=_LIMITS)] = LimitOptions(),
    seed: int = 0,
    out: Annotated[Path, Parameter(group=OUTPUT)],
    overwrite: Overwrite = False,
    json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Show which parts of an input decide its point on the map.

    Differentiates the log density of the map through the classifier and draws which parts of each input raise (red) or
    lower (blue) it. With --attack or --reach, changes each input within a budget so that its point moves.

    The classifier is a program and is run, in a process of its own with limits of time and memory. The limits do not
    keep it from files or the network: explain only a classifier that you trust.

    Parameters
    ----------
    bundle
        Bundle with the map of the classifier.
    module
        The classifier: a torch.export program (.pt2) or TorchScript.
    inputs
        Inputs (n, ...) as the classifier takes them: .npy, or .npz with an array inputs.
    outputs
        Output of the classifier.
    rows
        Explain at most this many inputs, the first ones.
    seed
        Seed of noise and of random starts.
    out
        Directory for all results, or one .npz or .png file.
    """
    attacks = change.attack is not None or change.reach is not None
    if change.attack is not None and change.reach is not None:
        raise ConfigError("--attack and --reach exclude each other; give one of them")
    if attacks != (change.budget is not None):
        raise ConfigError("--budget needs --attack or --reach, and both of them need --budget")
    if rows < 1:
        raise ConfigError(f"--rows is {rows}; it must be at least 1")
    files = _output_files(out, overwrite=overwrite)
    if not module.is_file():
        raise ConfigError(f"{module} does not exist; name the file of the classifier")
    # Refuse what can be refused before torch is imported, which takes seconds.
    loaded = read_bundle(bundle)
    read_array(inputs, *_NAMES)
    require("matplotlib", "report")
    with on_interrupt(f"nothing was written to {out}"):
        task = _Task(bundle, module, inputs, outputs, rows, heat, change, seed, quiet)
        columns = run_limited(_compute, task, limits=limits)
        result = _result(heat, change, loaded, columns, {kind: str(path) for kind, path in files.items()})
        _write(out, files, columns, result)
    if json:
        print_json(result)
    else:
        _print_rows(result)
        say(f"wrote {', '.join(str(path) for path in files.values())}")


@dataclass(frozen=True, slots=True)
class _Task:
    """What the child process computes; parameters as in `explain`."""

    bundle: Path
    module: Path
    inputs: Path
    outputs: Literal["logits", "probs"]
    rows: int
    heat: HeatOptions
    change: AttackOptions
    seed: int
    quiet: bool


def _compute(task: _Task) -> Columns:
    """All arrays of the result."""
    require("torch", "fit")
    from darksight_core.explain import Chain, load_classifier

    heat, change = task.heat, task.change
    arrays, loaded = read_array(task.inputs, *_NAMES)[: task.rows], read_bundle(task.bundle)
    chain = Chain(load_classifier(task.module), loaded.embedder, outputs=task.outputs, point=heat.point)
    policy = ScoringPolicy.of(loaded)
    scored = chain.scored(policy, chain.tensor(arrays))
    objective = _objective(heat, chain, loaded, scored)
    with Bars(quiet=task.quiet) as bars:
        found = _attribute(heat, task.seed, chain, objective, arrays, bars)
        attacked = None
        if change.budget is not None:
            attacked = _attack(change, task.seed, chain, objective, policy, arrays, bars)
    return _columns(arrays, scored, found, attacked)


def _output_files(out: Path, *, overwrite: bool) -> dict[str, Path]:
    """Files to write, by kind."""
    if out.suffix in (".npz", ".png"):
        files = {"arrays" if out.suffix == ".npz" else "sheet": out}
    elif (out.suffix or out.exists()) and not out.is_dir():
        raise ConfigError(f"--out is {out}; it must be a directory or a .npz or .png file")
    else:
        files = {"arrays": out / "explain.npz", "sheet": out / "explain.png"}
    for path in files.values():
        if out.suffix or path.exists():
            check_output(path, overwrite=overwrite)
    return files


def _objective(options: HeatOptions, chain: Chain, bundle: Bundle, scored: ScoredBatch) -> Objective:
    from darksight_core.explain import log_class, log_density, log_kde

    if options.of == "density":
        return log_density(chain)
    if options.of == "kde":
        return log_kde(bundle.kde)
    if options.class_name is None:
        classes = set(scored.predicted.tolist())
        if len(classes) > 1:
            raise ConfigError("the inputs have several predicted classes; choose one with --class")
        return log_class(chain, classes.pop())
    if options.class_name not in bundle.class_names:
        hint = did_you_mean(options.class_name, bundle.class_names)
        raise ConfigError(f"--class: the bundle has no class {options.class_name!r}; {hint}")
    return log_class(chain, bundle.class_names.index(options.class_name))


def _attribute(
    options: HeatOptions, seed: int, chain: Chain, objective: Objective, inputs: NDArray[Any], report: Bars
) -> Attribution:
    from darksight_core.explain import gradient, integrated, smooth

    if options.method == "integrated":
        return integrated(chain, objective, inputs, baseline=options.baseline, steps=options.steps, report=report)
    if options.method == "smooth":
        noise, samples = options.noise, options.samples
        return smooth(chain, objective, inputs, noise=noise, samples=samples, seed=seed, report=report)
    return gradient(chain, objective, inputs, report=report)


def _attack(
    options: AttackOptions,
    seed: int,
    chain: Chain,
    objective: Objective,
    policy: ScoringPolicy,
    inputs: NDArray[Any],
    report: Bars,
) -> Attack:
    from darksight_core.explain import attack, nearness

    assert options.budget is not None
    wanted: Callable[[Any], Any] = objective
    if options.reach is not None:
        wanted = nearness(options.reach)
    elif options.attack == "out":
        wanted = lambda points: -objective(points)  # noqa: E731 - only the sign changes
    low, high = options.range
    return attack(
        chain,
        wanted,
        policy,
        inputs,
        budget=options.budget,
        low=low,
        high=high,
        steps=options.attack_steps,
        starts=options.starts,
        seed=seed,
        report=report,
    )


def _columns(inputs: NDArray[Any], scored: ScoredBatch, found: Attribution, attacked: Attack | None) -> Columns:
    columns = {"inputs": inputs, "heat": found.heat, "value": found.value, "stationary": found.stationary}
    if found.gap is not None and found.change is not None:
        columns |= {"change": found.change, "gap": found.gap}
    columns |= _score_columns(scored, "")
    if attacked is not None:
        columns |= {"attacked": attacked.inputs, "moved": attacked.moved, **_score_columns(attacked.after, "after_")}
    return columns


def _score_columns(scored: ScoredBatch, prefix: str) -> Columns:
    return {
        f"{prefix}point": scored.points,
        f"{prefix}log_density": scored.log_density,
        f"{prefix}log_kde": scored.log_kde,
        f"{prefix}p_value": scored.p_value,
        f"{prefix}predicted": scored.predicted,
        f"{prefix}decision": np.array([Decision(code).name.lower() for code in scored.decision]),
    }


def _result(
    heat: HeatOptions, change: AttackOptions, bundle: Bundle, columns: Columns, files: dict[str, str]
) -> dict[str, Any]:
    shown = {name: column.tolist() for name, column in columns.items() if name not in ("inputs", "heat", "attacked")}
    rows: list[dict[str, Any]] = [dict(zip(shown, values, strict=True)) for values in zip(*shown.values(), strict=True)]
    for row in rows:
        for name in ("predicted", "after_predicted"):
            if name in row:
                row[name] = bundle.class_names[row[name]]
    goal = None
    if change.budget is not None:
        goal = {"goal": change.attack or change.reach, "budget": change.budget, "range": change.range}
    return {"method": heat.method, "of": heat.of, "point": heat.point, "attack": goal, "rows": rows, "files": files}


def _write(out: Path, files: dict[str, Path], columns: Columns, result: dict[str, Any]) -> None:
    from darksight_core.pictures.map_picture import save_map
    from darksight_service.report.heat_maps import draw_heat_maps

    if not out.suffix:
        out.mkdir(parents=True, exist_ok=True)
    if "arrays" in files:
        with atomic(files["arrays"]) as partial:
            np.savez(partial, allow_pickle=False, **columns)
    if "sheet" in files:
        captions = [
            f"{row['predicted']}, log P {row['log_density']:.2f}, p {row['p_value']:.3f}" for row in result["rows"]
        ]
        if result["attack"] is not None:
            captions = [
                f"{caption}\nthen {row['after_predicted']}, {row['after_log_density']:.2f}, {row['after_p_value']:.3f}"
                for caption, row in zip(captions, result["rows"], strict=True)
            ]
        what = f"{_METHODS[result['method']]} of {_VALUES[result['of']]} at the {result['point']} point"
        title = f"{what}: red raises it, blue lowers it"
        figure = draw_heat_maps(
            columns["inputs"], columns["heat"], captions, title=title, changed=columns.get("attacked")
        )
        with atomic(files["sheet"]) as partial:
            save_map(figure, partial)


def _print_rows(result: dict[str, Any]) -> None:
    rows = result["rows"]
    names = ["predicted", "log_density", "log_kde", "p_value", "stationary"] + (["gap"] if "gap" in rows[0] else [])
    if result["attack"] is not None:
        names += ["moved", "after_predicted", "after_log_density", "after_log_kde", "after_p_value"]
    print_table([(number, *(row[name] for name in names)) for number, row in enumerate(rows)], ("row", *names))
