"""Fitting a map: fast against the paper's method, t-SNE and UMAP, scaling with rows, and the closed form.

CPU seconds are of one process with one thread, all in one run; what counts are the ratios.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from darksight_core.evaluation.classes import class_medians
from darksight_core.evaluation.fidelity import fidelity
from darksight_core.evaluation.measures import measure_map
from darksight_core.fit import FitConfig, fit_map
from darksight_core.rows import simplex
from tests.bench import results
from tests.bench.published import fit_published

_FILES = ("mnist_paper", "cifar10_resnet56", "cifar10_vgg16", "mnist_lenet", "cifar100_resnet56")
Probs = NDArray[np.float32]


def timed(call: Callable[[], object]) -> tuple[object, float, float]:
    """Result, CPU seconds and wall seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    result = call()
    return result, time.process_time() - cpu, time.perf_counter() - wall


def run_fit(probs: Probs, **options: object) -> tuple[float, float, float]:
    """KL_sym, agreement with the watched classifier, CPU seconds."""
    fitted, cpu, _ = timed(lambda: fit_map(probs, FitConfig(**options)))  # type: ignore[arg-type]
    found = fidelity(simplex.log_probs(probs), fitted.student.log_posterior(fitted.points))  # type: ignore[attr-defined]
    return found.kl_sym, found.acc_teacher, cpu


def data_sets() -> dict[str, Probs]:
    """Real predictions where they are, digits elsewhere."""
    found = {name: rows[0] for name in _FILES if (rows := results.real_probs(name)) is not None}
    return found or {"digits": results.digits_probs()[0]}


def against_paper(sets: dict[str, Probs], epochs: int, seeds: int) -> results.Table:
    """Fast against plain SGD on the same rows."""
    rows = []
    for name, probs in sets.items():
        runs = [run_fit(probs, seed=seed) for seed in range(seeds)]
        published_kl, published_cpu, _ = timed(lambda rows=probs: fit_published(rows, epochs=epochs))
        slow_kl, slow_agree, slow_cpu = run_fit(probs, method="paper", epochs=epochs)
        cpu = float(np.median([run[2] for run in runs]))
        kls = [run[0] for run in runs]
        svd_cpu = timed(lambda rows=probs: fit_map(rows, FitConfig(method="svd")))[1]
        rows.append(
            (
                name,
                probs.shape[1],
                " ".join(f"{kl:.4f}" for kl in kls),
                f"{100 * min(run[1] for run in runs):.2f}%",
                f"{cpu:.2f}",
                f"{published_kl:.4f}",
                f"{published_cpu:.1f}",
                f"{published_cpu / cpu:.0f}x",
                f"{slow_kl:.4f}",
                f"{100 * slow_agree:.2f}%",
                f"{slow_cpu:.1f}",
                f"{slow_cpu / cpu:.1f}x",
                f"{svd_cpu / cpu:.3f}",
            )
        )
        print(rows[-1], file=sys.stderr)
    header = (
        "rows", "K", "fast KL_sym (seeds)", "agree", "CPU s",
        f"published algorithm, {epochs} epochs: KL_sym", "its CPU s", "it against fast",
        "`paper` (ours, closed-form gradients): KL_sym", "`paper` agree", "`paper` CPU s", "`paper` against fast",
        "svd against fast",
    )  # fmt: skip
    return results.Table(header, rows)


def against_embeddings(probs: Probs, labels: NDArray[np.int64] | None) -> results.Table:
    """Time and local fidelity beside t-SNE and UMAP on the same rows."""
    from openTSNE import TSNE as OpenTSNE
    from sklearn.manifold import TSNE
    from umap import UMAP

    log_pi = simplex.log_probs(probs)
    rows = []

    def add(name: str, call: Callable[[], object], student: bool = False) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made, cpu, wall = timed(call)
        if student:
            points, centres = made.points, made.student.means  # type: ignore[attr-defined]
            log_q = made.student.log_posterior(points)  # type: ignore[attr-defined]
        else:
            points = np.asarray(made, dtype=np.float64)
            centres, log_q = class_medians(log_pi, points), None
        found = measure_map(log_pi, log_q, points, centres, labels)
        local = dict(zip(found.local_fidelity.neighbours, found.local_fidelity.teacher, strict=True))
        rows.append(
            (
                name, f"{wall:.1f}", f"{cpu:.1f}", *(f"{local[k]:.4f}" for k in (5, 10, 50, 100)),
                f"{found.trustworthiness.value:.3f}",
                None if found.cluster_monotonicity.mean is None else f"{found.cluster_monotonicity.mean:.2f}",
            )
        )  # fmt: skip
        print(rows[-1], file=sys.stderr)

    add("DarkSight fast", lambda: fit_map(probs), student=True)
    add("UMAP", lambda: UMAP(random_state=0).fit_transform(probs))
    add("openTSNE", lambda: OpenTSNE(random_state=0, n_jobs=2).fit(probs))
    add("scikit-learn t-SNE", lambda: TSNE(random_state=0, n_jobs=2).fit_transform(probs))
    header = ("method", "wall s", "CPU s", "M_5", "M_10", "M_50", "M_100", "trustworthiness", "monotonicity")
    return results.Table(header, rows)


def jittered(probs: Probs, n: int) -> Probs:
    """n rows drawn with replacement, their logits jittered."""
    rng = np.random.default_rng(0)
    out = np.empty((n, probs.shape[1]), dtype=np.float32)
    for start in range(0, n, 100_000):
        part = simplex.log_probs(probs[rng.integers(len(probs), size=min(100_000, n - start))])
        out[start : start + len(part)] = np.exp(simplex.log_softmax(part + 0.1 * rng.normal(size=part.shape)))
    return out


def one_size(name: str, n: int) -> None:
    """Fit n rows in this process and print CPU seconds per row and the growth of resident memory over the input."""
    torch.set_num_threads(1)
    probs = jittered(data_sets()[name], n)
    fit_map(probs[:500])  # first use of torch and its libraries
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    _, cpu, _ = timed(lambda: fit_map(probs))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    print(f"{cpu / n * 1e6} {(probs.nbytes + grown) / probs.nbytes}")


def scaling(name: str) -> results.Parts:
    """Cost per row and peak memory from 10,000 to 1,000,000 rows, each size in a process of its own."""
    rows, first = [], None
    for n in (10_000, 100_000, 1_000_000):
        command = [sys.executable, "-m", "tests.bench.fit", "--size", str(n), "--name", name]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        cost, memory = (float(part) for part in out.split()[-2:])
        first = first or cost
        rows.append((f"{n:,}", f"{cost:.1f}", f"{cost / first:.2f}", f"{memory:.2f}"))
        print(rows[-1], file=sys.stderr)
    return results.Table(("rows", "CPU us per row", "against 10,000", "peak memory / input"), rows)


def main(argv: list[str]) -> int:
    """Run all parts, or the ones named."""
    parser = argparse.ArgumentParser(prog="./dev bench fit", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=["paper", "embeddings", "scaling", []], default=[])
    parser.add_argument("--epochs", type=int, default=1_000, help="epochs of the paper's method (default 1000)")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of the fast method (default 3)")
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--name", default="", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.size:
        one_size(args.name, args.size)
        return 0
    parts = args.parts or ["paper", "embeddings", "scaling"]
    sets = data_sets()
    first = next(iter(sets))
    threads = torch.get_num_threads()
    if "paper" in parts:
        torch.set_num_threads(1)
        results.save("fit: fast against the paper's method", against_paper(sets, args.epochs, args.seeds))
        torch.set_num_threads(threads)
    if "embeddings" in parts:
        real = results.real_probs(first)
        labels = real[1] if real else results.digits_probs()[1]
        results.save(f"fit: beside t-SNE and UMAP ({first})", against_embeddings(sets[first], labels))
    if "scaling" in parts:
        results.save(f"fit: cost per row ({first}, rows drawn with jitter)", scaling(first))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
