"""`darksight explain`: which parts of an input put it where it is on the map, and how little moves it elsewhere."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from darksight_core.bundle import Bundle, read_bundle
from darksight_core.errors import ConfigError
from darksight_core.runtime.policy import ScoringPolicy
from darksight_core.scored import Decision, ScoredBatch
from darksight_service.cli.console import Bars, HelpFormatter, print_json, print_table, require, say
from darksight_service.scoring.files.arrays import read_array
from darksight_service.scoring.files.tables import atomic, check_place

if TYPE_CHECKING:
    from darksight_core.explain import Attack, Attribution, Chain, Objective

__all__ = ["add_parser", "run"]

Columns: TypeAlias = dict[str, NDArray[Any]]

_NAMES = ("inputs", "images", "x")


def add_parser(commands: Any) -> None:
    """Add `explain` to the command line."""
    parser = commands.add_parser(
        "explain",
        help="heat maps of inputs, and inputs that are made to move on the map",
        description="Differentiates log P(y; θ) of the map through the watched classifier, draws which parts of each "
        "input raise or lower it, and, with --attack, changes inputs within a budget so that they move into or out of "
        "dense regions. The classifier comes as a program, which is run: explain only one that you trust.",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="bundle of the classifier's map")
    parser.add_argument(
        "module", type=Path, metavar="MODULE", help="the classifier: torch.export (.pt2) or TorchScript"
    )
    parser.add_argument(
        "inputs", type=Path, metavar="INPUTS", help=".npy, or .npz with an array inputs: (n, ...) floats"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for all results, or a file .npz or .png")
    parser.add_argument("--overwrite", action="store_true", help="replace existing files")
    parser.add_argument("--outputs", choices=["logits", "probs"], default="logits", help="what the classifier gives")
    parser.add_argument("--rows", type=int, default=64, help="explain the first inputs, at most so many")
    parser.add_argument(
        "--method", choices=["gradient", "integrated", "smooth"], default="gradient", help="kind of heat"
    )
    parser.add_argument("--of", choices=["density", "kde", "class"], default="density", help="what is explained")
    parser.add_argument(
        "--class", dest="class_name", metavar="NAME", help="class for --of class (default: the predicted)"
    )
    parser.add_argument(
        "--place", choices=["refined", "network"], default="refined", help="the y that is differentiated"
    )
    parser.add_argument("--baseline", type=float, default=0.0, help="value where integrated begins")
    parser.add_argument("--steps", type=int, default=64, help="steps of integrated")
    parser.add_argument("--samples", type=int, default=32, help="noisy copies of smooth")
    parser.add_argument("--noise", type=float, default=0.1, help="noise of smooth, as a share of an input's range")
    goal = parser.add_mutually_exclusive_group()
    goal.add_argument("--attack", choices=["in", "out"], help="raise or lower what is explained")
    goal.add_argument("--reach", type=_point, metavar="X,Y", help="move inputs towards this point of the map")
    parser.add_argument("--budget", type=float, help="largest change of a coordinate by an attack")
    parser.add_argument("--range", type=_point, default=(0.0, 1.0), metavar="LOW,HIGH", help="range of valid inputs")
    parser.add_argument("--attack-steps", type=int, default=40, help="steps of an attack")
    parser.add_argument("--starts", type=int, default=1, help="starts of an attack, all but the first at random")
    parser.add_argument("--seed", type=int, default=0, help="seed of noise and of starts")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Explain inputs."""
    attacks = args.attack is not None or args.reach is not None
    if attacks != (args.budget is not None):
        raise ConfigError("--budget goes with --attack or --reach, and they with it")
    files = _files(args)
    args.on_interrupt = f"nothing was written to {args.out}"
    if not args.module.is_file():
        raise ConfigError(f"{args.module} is no file; name the classifier's program")
    inputs, bundle = read_array(args.inputs, *_NAMES)[: args.rows], read_bundle(args.bundle)
    # Whatever can be refused without torch has been: it takes seconds to import.
    require("torch", "fit")
    require("matplotlib", "report")
    from darksight_core.explain import Chain, load_classifier

    chain = Chain(load_classifier(args.module), bundle.embedder, outputs=args.outputs, place=args.place)
    policy = ScoringPolicy.of(bundle)
    scored = chain.scored(policy, chain.tensor(inputs))
    objective = _objective(args, chain, bundle, scored)
    with Bars(quiet=args.quiet) as bars:
        found = _explain(args, chain, objective, inputs, bars)
        attacked = _attack(args, chain, objective, policy, inputs, bars) if attacks else None
    columns = _columns(inputs, scored, found, attacked)
    result = _result(args, bundle, columns, {kind: str(path) for kind, path in files.items()})
    _write(args, files, columns, result)
    if args.json:
        print_json(result)
    else:
        _print(result)
        say(f"wrote {', '.join(str(path) for path in files.values())}")
    return 0


def _point(text: str) -> tuple[float, float]:
    try:
        first, second = (float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not two numbers such as 0,1") from None
    return first, second


def _files(args: argparse.Namespace) -> dict[str, Path]:
    """What is to be written, by kind; refused before the work, not after."""
    out: Path = args.out
    if args.rows < 1:
        raise ConfigError(f"--rows must be at least 1, not {args.rows}")
    if out.suffix in (".npz", ".png"):
        files = {"arrays" if out.suffix == ".npz" else "sheet": out}
    elif (out.suffix or out.exists()) and not out.is_dir():
        raise ConfigError(f"--out is a folder, or a file .npz or .png, not {out}")
    else:
        files = {"arrays": out / "explain.npz", "sheet": out / "explain.png"}
    for path in files.values():
        if out.suffix or path.exists():
            check_place(path, overwrite=args.overwrite)
    return files


def _objective(args: argparse.Namespace, chain: Chain, bundle: Bundle, scored: ScoredBatch) -> Objective:
    from darksight_core.explain import log_class, log_density, log_kde

    if args.of == "density":
        return log_density(chain)
    if args.of == "kde":
        return log_kde(bundle.kde)
    if args.class_name is None:
        classes = set(scored.predicted.tolist())
        if len(classes) > 1:
            raise ConfigError("the inputs are predicted as several classes; name one with --class")
        return log_class(chain, classes.pop())
    if args.class_name not in bundle.class_names:
        raise ConfigError(f"--class {args.class_name} is none of {', '.join(bundle.class_names)}")
    return log_class(chain, bundle.class_names.index(args.class_name))


def _explain(
    args: argparse.Namespace, chain: Chain, objective: Objective, inputs: NDArray[Any], report: Bars
) -> Attribution:
    from darksight_core.explain import gradient, integrated, smooth

    if args.method == "integrated":
        return integrated(chain, objective, inputs, baseline=args.baseline, steps=args.steps, report=report)
    if args.method == "smooth":
        options = {"noise": args.noise, "samples": args.samples, "seed": args.seed}
        return smooth(chain, objective, inputs, **options, report=report)
    return gradient(chain, objective, inputs, report=report)


def _attack(
    args: argparse.Namespace,
    chain: Chain,
    objective: Objective,
    policy: ScoringPolicy,
    inputs: NDArray[Any],
    report: Bars,
) -> Attack:
    from darksight_core.explain import attack, nearness

    wanted: Callable[[Any], Any] = objective
    if args.reach is not None:
        wanted = nearness(args.reach)
    elif args.attack == "out":
        wanted = lambda points: -objective(points)  # noqa: E731 - the sign is all there is to it
    low, high = args.range
    options = {"steps": args.attack_steps, "starts": args.starts, "seed": args.seed}
    return attack(chain, wanted, policy, inputs, budget=args.budget, low=low, high=high, **options, report=report)


def _columns(inputs: NDArray[Any], scored: ScoredBatch, found: Attribution, attacked: Attack | None) -> Columns:
    columns = {"inputs": inputs, "heat": found.heat, "value": found.value, "at_rest": found.at_rest}
    if found.gap is not None and found.change is not None:
        columns |= {"change": found.change, "gap": found.gap}
    columns |= _serving(scored, "")
    if attacked is not None:
        columns |= {"attacked": attacked.inputs, "moved": attacked.moved, **_serving(attacked.after, "after_")}
    return columns


def _serving(scored: ScoredBatch, prefix: str) -> Columns:
    """What the serving scorer and gate say, as columns."""
    return {
        f"{prefix}point": scored.points,
        f"{prefix}log_density": scored.log_density,
        f"{prefix}log_kde": scored.log_kde,
        f"{prefix}p_value": scored.p_value,
        f"{prefix}predicted": scored.predicted,
        f"{prefix}decision": np.array([Decision(code).name.lower() for code in scored.decision]),
    }


def _result(args: argparse.Namespace, bundle: Bundle, columns: Columns, files: dict[str, str]) -> dict[str, Any]:
    shown = {name: column.tolist() for name, column in columns.items() if name not in ("inputs", "heat", "attacked")}
    rows: list[dict[str, Any]] = [dict(zip(shown, values, strict=True)) for values in zip(*shown.values(), strict=True)]
    for row in rows:
        for name in ("predicted", "after_predicted"):
            if name in row:
                row[name] = bundle.class_names[row[name]]
    goal = None
    if args.budget is not None:
        goal = {"goal": args.attack or list(args.reach), "budget": args.budget, "range": list(args.range)}
    return {"method": args.method, "of": args.of, "place": args.place, "attack": goal, "rows": rows, "files": files}


def _write(args: argparse.Namespace, files: dict[str, Path], columns: Columns, result: dict[str, Any]) -> None:
    from darksight_service.report.heat_maps import draw_heat_maps
    from darksight_service.report.map_picture import save_map

    if not args.out.suffix:
        args.out.mkdir(parents=True, exist_ok=True)
    if "arrays" in files:
        with atomic(files["arrays"]) as partial:
            np.savez(partial, allow_pickle=False, **columns)
    if "sheet" in files:
        captions = [
            f"{row['predicted']}, log P {row['log_density']:.2f}, p {row['p_value']:.3f}" for row in result["rows"]
        ]
        if args.budget is not None:
            captions = [
                f"{caption}\nthen {row['after_predicted']}, {row['after_log_density']:.2f}, {row['after_p_value']:.3f}"
                for caption, row in zip(captions, result["rows"], strict=True)
            ]
        title = f"{args.method} of {args.of} at the {args.place} place: red raises it, blue lowers it"
        figure = draw_heat_maps(columns["inputs"], columns["heat"], captions, title=title, changed=columns.get("attacked"))
        with atomic(files["sheet"]) as partial:
            save_map(figure, partial)


def _print(result: dict[str, Any]) -> None:
    rows = result["rows"]
    names = ["predicted", "log_density", "log_kde", "p_value", "at_rest"] + (["gap"] if "gap" in rows[0] else [])
    if result["attack"] is not None:
        names += ["moved", "after_predicted", "after_log_density", "after_log_kde", "after_p_value"]
    print_table([(number, *(row[name] for name in names)) for number, row in enumerate(rows)], ("row", *names))
