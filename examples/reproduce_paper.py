"""Reproduces the tables, figures and claims of the paper on real predictions, beside the figures of the paper.

Run the script (`python examples/reproduce_paper.py --data DIRECTORY`), or run its `# %%` cells one by one in an editor.
It needs the predictions described in examples/README.md, and `pip install 'darksight[service,fit,report,compare]'`.
Most of the time goes to t-SNE. It writes figures and `report.md` to `--out`.
"""

# %% Imports and options
import argparse
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from densities import DirichletMixture, MapMixture, RowKde
from matplotlib.figure import Figure

from darksight_core.evaluation.cases import alike
from darksight_core.evaluation.classes import class_medians, spearman
from darksight_core.evaluation.failure import failure_figures
from darksight_core.evaluation.fidelity import fidelity
from darksight_core.evaluation.measures import measure_map
from darksight_core.evaluation.neighbourhoods import nearest
from darksight_core.fit import fit_map
from darksight_core.guarantees.risk_curve import risk_curve
from darksight_core.map.density import Kde
from darksight_core.map.palette import class_colours
from darksight_core.map.paths import bridge, trace
from darksight_core.pictures.map_picture import draw_map
from darksight_core.predictions import read_predictions
from darksight_core.rows.simplex import entropy, log_probs

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="directory of predictions (%(default)s)")
parser.add_argument(
    "--out", type=Path, default=Path("paper-example"), help="directory for report and figures (%(default)s)"
)
parser.add_argument("--rows", type=int, default=10_000, help="rows of each file (%(default)s)")
parser.add_argument("--compared", type=int, default=10_000, help="rows that other methods are run on (%(default)s)")
parser.add_argument("--perplexities", default="30", help="perplexities of t-SNE; the best counts (%(default)s)")
parser.add_argument("--no-umap", action="store_true", help="skip UMAP, which is slow to start")
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)

MNIST = [str(digit) for digit in range(10)]
CIFAR = ["plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
VEHICLES = [CIFAR.index(name) for name in ("plane", "car", "ship", "truck")]
COLOURS = {
    "DarkSight": "#0072B2", "t-SNE prob": "#E69F00", "t-SNE logit": "#D55E00", "t-SNE fc2": "#CC79A7",
    "UMAP prob": "#009E73", "KDE on probabilities": "#56B4E9", "Dirichlet mixture": "#999933",
    "largest probability": "#333333",
}  # fmt: skip
NEIGHBOURS = tuple(k for k in (2, 5, 10, 20, 50, 100, 200) if k < args.compared)


@dataclass
class Map:
    """A map of some rows: the method, points, class centres and cost."""

    name: str
    points: np.ndarray
    centres: np.ndarray
    seconds: float
    cpu_seconds: float
    student: object = None
    perplexity: float | None = None


def embed(method: str, rows: np.ndarray, perplexity: float = 30.0) -> tuple[np.ndarray, float, float]:
    """Points (n, 2) of rows (n, d) by t-SNE or UMAP, the seconds that they took, and the CPU seconds."""
    if method == "umap":
        from umap import UMAP

        fit = UMAP(n_neighbors=min(15, len(rows) - 1), random_state=0).fit_transform
    else:
        options = {"perplexity": min(perplexity, (len(rows) - 1) / 3.0), "random_state": 0, "n_jobs": 1}
        try:
            from openTSNE import TSNE

            fit = TSNE(**options).fit
        except ImportError:
            from sklearn.manifold import TSNE

            fit = TSNE(**options).fit_transform
    wall, cpu = time.perf_counter(), time.thread_time()
    with warnings.catch_warnings():
        # Libraries warn about each other's versions and their own random states; users cannot change that.
        warnings.simplefilter("ignore")
        points = np.asarray(fit(np.ascontiguousarray(rows, dtype=np.float64)), dtype=np.float64)
    return points, time.perf_counter() - wall, time.thread_time() - cpu


class Rows:
    """The first n predictions of one classifier."""

    def __init__(self, name: str, n: int) -> None:
        found = read_predictions(args.data / name / "test.npz", keep_logits=True)
        self.probs, self.logits = found.probs[:n], found.logits[:n]
        self.labels, self.names = found.labels[:n], found.class_names
        self.log_pi = log_probs(self.probs)
        self.predicted = self.log_pi.argmax(axis=1)
        self.wrong = self.predicted != self.labels

    def fitted(self) -> Map:
        """Our map of these rows."""
        cpu = time.process_time()
        found = fit_map(self.probs)
        return Map(
            "DarkSight",
            found.points,
            found.student.means,
            found.seconds,
            time.process_time() - cpu,
            student=found.student,
        )

    def by_others(self, method: str, source: str, values: np.ndarray) -> list[Map]:
        """Another method's maps of what it reads, one for each perplexity."""
        found = []
        for perplexity in [float(text) for text in args.perplexities.split(",")] if method == "tsne" else [30.0]:
            points, seconds, cpu_seconds = embed(method, values[: len(self.probs)], perplexity)
            name = {"tsne": "t-SNE", "umap": "UMAP"}[method] + f" {'fc2' if source == 'features' else source}"
            centres = class_medians(self.log_pi, points)
            shown = perplexity if method == "tsne" else None
            found.append(Map(name, points, centres, seconds, cpu_seconds, perplexity=shown))
            print(f"{name}, perplexity {perplexity:g}: {seconds:.1f} s, {cpu_seconds:.1f} CPU s", flush=True)
        return found

    def measured(self, maps: list[Map]) -> dict[str, dict[str, object]]:
        """Cluster preservation, global and local fidelity by name, each at its best perplexity.

        `map` has the best clusters, and the time is the shortest.
        """
        table: dict[str, dict[str, object]] = {}
        for each in maps:
            log_q = None if each.student is None else each.student.log_posterior(each.points)
            found = measure_map(
                self.log_pi, log_q, each.points, each.centres, self.labels, neighbours=NEIGHBOURS, max_rows=4_000
            )
            best = table.setdefault(each.name, {})
            if found.cluster_monotonicity.mean > best.get("cluster", -1.0):
                best |= {"map": each, "cluster": found.cluster_monotonicity.mean}
            if each.cpu_seconds < best.get("cpu", np.inf):
                best |= {"seconds": each.seconds, "cpu": each.cpu_seconds}
            best["global"] = max(found.global_fidelity.soft, best.get("global", -1.0))
            best["local"] = np.minimum(found.local_fidelity.teacher, best.get("local", np.inf))
        return table

    def confidences(self, maps: list[Map]) -> dict[str, np.ndarray]:
        """Scores by name: on a map, the better of KDE and Gaussian mixture, as in the paper."""
        found: dict[str, np.ndarray] = {}
        for each in maps:
            scores = [
                Kde.fit(each.points).log_density(each.points),
                MapMixture.fit(each.points).log_density(each.points),
            ]
            scores += [found[each.name]] if each.name in found else []
            found[each.name] = min(scores, key=self.aurc)
        found["KDE on probabilities"] = RowKde.fit(self.probs).log_density(self.probs)
        found["Dirichlet mixture"] = DirichletMixture.fit(self.probs).log_density(self.probs)
        found["largest probability"] = self.log_pi.max(axis=1)
        return found

    def aurc(self, scores: np.ndarray) -> float:
        """Area under the risk-coverage curve, lower is better."""
        return failure_figures(scores, self.wrong, resamples=0).aurc

    def accuracy_at(self, scores: np.ndarray, kept: float) -> float:
        """Accuracy if this share of the rows is kept."""
        curve = risk_curve(scores, self.wrong)
        return float(np.interp(kept, curve.coverage, curve.accuracy))


def titled(each: Map) -> str:
    """Name of the method, with the perplexity."""
    return each.name if each.perplexity is None else f"{each.name} (perplexity {each.perplexity:g})"


claims: list[tuple[str, str, str, str]] = []


def claim(text: str, paper: str, ours: str, holds: bool | None) -> None:
    """Record whether a claim of the paper is reproduced; None for in part."""
    verdict = {True: "reproduced", False: "not reproduced", None: "in part"}[holds]
    claims.append((text, paper, ours, verdict))
    print(f"{verdict:<15} {text}: {ours} (paper: {paper})", flush=True)


# %% Quality of model compression: the paper's MNIST predictions, another VGG16, a ResNet-56 in place of a Wide-ResNet
PAPER = {"mnist_paper": (0.0703, 0.982, 0.999), "cifar10_vgg16": (0.0246, 0.940, 0.997)}
PAPER["cifar100_resnet56"] = (0.383, 0.792, 0.999)
KINDS = {
    "mnist_paper": "MNIST, LeNet: the paper's own predictions",
    "cifar10_vgg16": "CIFAR-10, VGG16: another one, 93.6% right, not 94.0%",
    "cifar100_resnet56": "CIFAR-100, ResNet-56, 72.6% right, in place of a Wide-ResNet, 79.2%",
}
compression, maps, rows_of = [], {}, {}
for folder, (kl_sym, ground, teacher) in PAPER.items():
    rows = rows_of[folder] = Rows(folder, args.rows)
    made = maps[folder] = rows.fitted()
    found = fidelity(rows.log_pi, made.student.log_posterior(made.points), rows.labels)
    compression.append((KINDS[folder], kl_sym, found.kl_sym, ground, found.acc_ground, teacher, found.acc_teacher))
    claim(
        f"{folder}: KL_sym and agreement with the teacher",
        f"{kl_sym}, {teacher:.1%}",
        f"{found.kl_sym:.4f}, {found.acc_teacher:.2%}",
        found.kl_sym <= kl_sym and found.acc_teacher >= teacher,
    )
authors = np.load(args.data / "mnist_paper" / "embedding.npz")
theirs = fidelity(rows_of["mnist_paper"].log_pi, log_probs(authors["student_probs"][: args.rows]))

# %% The maps, as in the paper's case studies
for folder, names in (("mnist_paper", MNIST), ("cifar10_vgg16", CIFAR), ("cifar100_resnet56", None)):
    rows, made = rows_of[folder], maps[folder]
    figure = draw_map(made.student, made.points, rows.predicted, rows.labels, names or rows.names, title=KINDS[folder])
    figure.savefig(args.out / f"map_{folder.partition('_')[0]}.png")

# %% MNIST by other methods, from a LeNet whose last hidden layer (fc2) is available
lenet = Rows("mnist_lenet", args.compared)
# The first run of a library compiles code and must not count; DarkSight has run above.
noise = np.random.default_rng(0).dirichlet(np.ones(10), min(args.compared, 1_200))
for method in ("tsne",) if args.no_umap else ("tsne", "umap"):
    embed(method, noise)
fc2 = np.load(args.data / "mnist_lenet" / "test_features.npz")["features"].astype(np.float64)
mnist_maps = [lenet.fitted()]
for source, values in (("prob", np.exp(lenet.log_pi)), ("logit", lenet.logits), ("features", fc2)):
    mnist_maps += lenet.by_others("tsne", source, values)
if not args.no_umap:
    mnist_maps += lenet.by_others("umap", "prob", np.exp(lenet.log_pi))
table = lenet.measured(mnist_maps)
tsne = ["t-SNE prob", "t-SNE logit", "t-SNE fc2"]

# %% Scatter plots shaded by entropy: are the most confident points in the middle of their clusters?
some = np.random.default_rng(0).permutation(len(lenet.probs))[:500]
figure = Figure(figsize=(12.0, 4.2), dpi=110, layout="constrained")
for axes, name in zip(figure.subplots(1, 3), ("DarkSight", "t-SNE prob", "t-SNE logit"), strict=True):
    each = table[name]["map"]
    axes.scatter(
        *each.points[some].T, s=9, c=entropy(lenet.log_pi)[some], cmap="Greys", edgecolors="grey", linewidths=0.2
    )
    axes.set(xticks=[], yticks=[], title=f"{titled(each)}: ρ {table[name]['cluster']:.2f}")
figure.suptitle("500 digits shaded by entropy; ρ: rank correlation of entropy with distance from the class centre")
figure.savefig(args.out / "clusters.png")


def figures_of(key: str, digits: int = 2) -> str:
    """A figure of DarkSight and of the three t-SNEs, as text."""
    return ", ".join(f"{name} {float(table[name][key]):.{digits}f}" for name in ("DarkSight", *tsne))


for key, text in (("cluster", "confidence falls from the cluster centre"), ("global", "near clusters are confused")):
    best = float(table["DarkSight"][key]) > max(float(table[name][key]) for name in tsne)
    claim(f"{text}, better than in any t-SNE", "good against acceptable and bad", figures_of(key), best)

# %% Local fidelity: M_k of the classifier's own rows, for every method the same formula
figure = Figure(figsize=(6.4, 4.2), dpi=110, layout="constrained")
axes = figure.subplots()
for name, found in table.items():
    axes.plot(NEIGHBOURS, found["local"], marker="o", color=COLOURS[name], label=name)
axes.set(xscale="log", xlabel="neighbours k", ylabel="M_k, lower is better", title="Local fidelity, LeNet on MNIST")
axes.set_xticks(NEIGHBOURS, [str(k) for k in NEIGHBOURS])
axes.minorticks_off()
axes.legend(frameon=False)
figure.savefig(args.out / "local_fidelity.png")
near, far = 0, len(NEIGHBOURS) - 1
local = {name: [float(table[name]["local"][at]) for at in (near, far)] for name in ("DarkSight", *tsne)}
written = ", ".join(f"{name} {low:.4f} / {high:.4f}" for name, (low, high) in local.items())
ks = f"k = {NEIGHBOURS[near]} / {NEIGHBOURS[far]}"
both = max(max(local[name][at] for name in ("DarkSight", "t-SNE prob")) - local["t-SNE fc2"][at] for at in (0, 1)) < 0
claim("DarkSight and t-SNE prob keep neighbours better than t-SNE fc2", "better", f"{ks}: {written}", both)
crossed = (local["t-SNE prob"][0] < local["DarkSight"][0], local["DarkSight"][1] < local["t-SNE prob"][1])
claim(
    "t-SNE prob is better for few neighbours, DarkSight for many",
    "crossing",
    f"{ks}: {written}",
    True if all(crossed) else None if any(crossed) else False,
)

# %% Outliers: accuracy of the rows that are kept, by different confidence scores
vgg = Rows("cifar10_vgg16", args.compared)
cifar_maps = [vgg.fitted()]
for source, values in (("prob", np.exp(vgg.log_pi)), ("logit", vgg.logits)):
    cifar_maps += vgg.by_others("tsne", source, values)
figure = Figure(figsize=(12.0, 4.6), dpi=110, layout="constrained")
rejection = {}
for axes, title, rows, several in zip(
    figure.subplots(1, 2), ("MNIST", "CIFAR-10"), (lenet, vgg), (mnist_maps, cifar_maps), strict=True
):
    scores = rows.confidences([each for each in several if not each.name.startswith("UMAP")])
    rejection[title] = {name: rows.aurc(score) for name, score in scores.items()}
    for name, score in scores.items():
        curve = risk_curve(score, rows.wrong)
        kept = curve.coverage >= 0.2
        label = f"{name} (AURC {1e3 * rejection[title][name]:.2f}e-3)"
        axes.plot(curve.coverage[kept], curve.accuracy[kept], color=COLOURS[name], label=label)
    axes.set(title=title, xlabel="share of rows kept", ylabel="accuracy of rows kept")
    axes.legend(frameon=False, fontsize=7)
    area = {name: 1e3 * value for name, value in rejection[title].items()}
    ours, kde, dirichlet = area["DarkSight"], area["KDE on probabilities"], area["Dirichlet mixture"]
    claim(
        f"{title}: density of the map is a better confidence than that of any t-SNE",
        "generally outperforms",
        "AURC in thousandths: " + ", ".join(f"{name} {value:.2f}" for name, value in area.items()),
        ours < min(value for name, value in area.items() if name.startswith("t-SNE")),
    )
    claim(
        f"{title}: it beats densities on the probabilities themselves",
        "on CIFAR-10 both, on MNIST as good as KDE where most is kept",
        f"{ours:.2f} against KDE {kde:.2f}, Dirichlet {dirichlet:.2f}",
        ours < min(kde, dirichlet),
    )
figure.savefig(args.out / "accuracy_data.png")

# %% The bridge from plane to bird: do probabilities change smoothly along it, and where does t-SNE place its rows?
made, plane, bird = cifar_maps[0], CIFAR.index("plane"), CIFAR.index("bird")
path = trace(made.student, bridge(vgg.log_pi, made.points, made.centres, plane, bird), made.points)
pair = np.exp(vgg.log_pi[:, [plane, bird]])
torn = np.flatnonzero((pair.sum(axis=1) >= 0.8) & (pair.min(axis=1) >= 0.05))
figure = Figure(figsize=(14.0, 4.0), dpi=110, layout="constrained")
left, *rest = figure.subplots(1, 4)
for k, colour in enumerate(class_colours(10)):
    left.plot(path.position, path.probs[:, k], color=colour, label=CIFAR[k] if k in (plane, bird) else None)
    left.scatter(path.row_position, vgg.probs[path.rows, k], s=6, color=colour)
left.set(xlabel="along the bridge", ylabel="probability", title="student (lines), classifier (dots)")
left.legend(frameon=False)
spread, gaps, widest = {}, {}, {}
for each in cifar_maps:
    places, size = each.points[torn], np.sqrt(each.points.var(axis=0).sum())
    wide = float(np.sqrt(places.var(axis=0).sum()) / size)
    gap = float(np.median(np.hypot(*(places - places[nearest(places, 1)[:, 0]]).T)) / size)
    if wide > spread.get(each.name, -1.0):
        widest[each.name] = each
    spread[each.name] = max(wide, spread.get(each.name, wide))
    gaps[each.name] = max(gap, gaps.get(each.name, gap))
for axes, each in zip(rest, widest.values(), strict=True):
    axes.scatter(*each.points.T, s=1, c="#cccccc")
    axes.scatter(*each.points[torn].T, s=8, c="#cc0000")
    axes.set(xticks=[], yticks=[], title=titled(each))
figure.suptitle(f"{len(torn)} rows torn between plane and bird")
figure.savefig(args.out / "bridge.png")
order = spearman(path.row_position, vgg.probs[path.rows, bird].astype(np.float64)) or 0.0
between = float(
    np.abs(
        path.probs
        - np.array([np.interp(path.position, path.row_position, vgg.probs[path.rows, k]) for k in range(10)]).T
    )[:, [plane, bird]].mean()
)
claim(
    "along plane to bird the two probabilities change over smoothly",
    "smooth",
    f"rank correlation of place and P(bird) {order:.3f}, map off by {between:.3f} on average",
    order > 0.9,
)
text = ", ".join(f"{name} {value:.2f}" for name, value in spread.items())
beside = ", ".join(f"{name} {value:.4f}" for name, value in gaps.items())
claim(
    "t-SNE crowds the torn rows into a small area, the map does not",
    "over-plots 38 rows",
    f"spread of {len(torn)} torn rows, relative to that of all: {text} "
    f"(median gap to the nearest other torn row, which is not judged: {beside})",
    spread["DarkSight"] > max(value for name, value in spread.items() if name != "DarkSight"),
)

# %% Groups and neighbours
turns = np.linspace(0.0, np.pi, 360, endpoint=False)
made = maps["cifar10_vgg16"]
sides = made.centres @ np.stack([np.cos(turns), np.sin(turns)])
animals = [k for k in range(10) if k not in VEHICLES]
gap = np.maximum(
    sides[VEHICLES].min(axis=0) - sides[animals].max(axis=0), sides[animals].min(axis=0) - sides[VEHICLES].max(axis=0)
)
claim(
    "a line parts vehicles from animals on the CIFAR-10 map",
    "two groups",
    f"gap {gap.max() / np.ptp(made.centres):.3f} of the map",
    bool(gap.max() > 0.0),
)
for folder, rows in (("mnist_paper", rows_of["mnist_paper"]), ("cifar10_vgg16", rows_of["cifar10_vgg16"])):
    kinds = alike(maps[folder].points, rows.predicted, rows.labels)
    claim(
        f"{folder}: neighbouring mistakes are mistakes of one kind",
        "tend to be",
        "too few mistakes" if kinds is None else f"{kinds.same:.0%} of {kinds.mistakes}, by chance {kinds.chance:.0%}",
        kinds is not None and kinds.same > 2.0 * kinds.chance,
    )
centres = maps["mnist_paper"].centres
first, second = np.triu_indices(10, 1)
distance = np.hypot(*(centres[first] - centres[second]).T)
rank = 1 + int((distance < distance[(first == 4) & (second == 9)]).sum())
claim(
    "4 and 9 are the nearest pair on the MNIST map",
    "nearest contours",
    f"number {rank} of 45 by centres",
    True if rank == 1 else None if rank <= 5 else False,
)

# %% Time: the same rows in the same run
ours = table["DarkSight"]
times = {name: (float(found["cpu"]), float(found["seconds"])) for name, found in table.items()}
claim(
    "a map takes no longer than t-SNE",
    "6 to 12 min against 12 min",
    "CPU seconds: " + ", ".join(f"{name} {cpu:.1f}" for name, (cpu, _) in times.items()),
    times["DarkSight"][0] < min(times[name][0] for name in tsne),
)
growth = []
for share in (4, 2, 1):
    cpu = time.process_time()
    fit_map(lenet.probs[: len(lenet.probs) // share])
    growth.append((len(lenet.probs) // share, time.process_time() - cpu))
claim(
    "time grows like O(N)",
    "O(N)",
    ", ".join(f"{n} rows {seconds:.2f} s" for n, seconds in growth),
    growth[-1][1] <= 1.3 * 4.0 * growth[0][1],
)

# %% The report
lines = ["# The paper again", ""]
lines += [
    f"{args.rows:,} rows of each file; other methods on {args.compared:,}, t-SNE at perplexity {args.perplexities}."
]
lines += [""]
lines += ["## Claims", "", "| claim | paper | here | |", "|---|---|---|---|"]
lines += [f"| {text} | {paper} | {ours} | {verdict} |" for text, paper, ours, verdict in claims]
lines += ["", "## Quality of model compression", ""]
lines += [
    "| classifier | KL_sym, paper | here | Acc#ground, paper | here | Acc#teacher, paper | here |",
    "|---|---|---|---|---|---|---|",
]
lines += [
    f"| {name} | {a} | {b:.4f} | {c:.1%} | {d:.2%} | {e:.1%} | {f:.2%} |" for name, a, b, c, d, e, f in compression
]
lines += ["", f"The authors' own map of the MNIST rows, measured here: KL_sym {theirs.kl_sym:.4f}, agreement "]
lines[-1] += f"{theirs.acc_teacher:.2%}."
lines += ["", "## Properties and time, LeNet on MNIST", ""]
lines += [
    "| method | 1 clusters ρ | 2 global ρ | 3 AURC, 1e-3 | 4 M_"
    + f"{NEIGHBOURS[near]} / M_{NEIGHBOURS[far]} | CPU s | wall s | paper: 1 2 3 4 |"
]
lines += ["|---|---|---|---|---|---|---|---|"]
marks = {"DarkSight": "✓ ✓ ✓ ~", "t-SNE prob": "~ × × ✓", "t-SNE logit": "× ~ ~ ×", "t-SNE fc2": "× × × ×"}
for name, found in table.items():
    area = f"{1e3 * rejection['MNIST'][name]:.2f}" if name in rejection["MNIST"] else "-"
    low, high = (found["local"][at] for at in (near, far))
    cpu, wall = times[name]
    cells = [name, f"{found['cluster']:.2f}", f"{found['global']:.2f}", area, f"{low:.4f} / {high:.4f}"]
    cells += [f"{cpu:.1f}", f"{wall:.1f}", marks.get(name, "-")]
    lines.append("| " + " | ".join(cells) + " |")
lines += ["", "## Figures", ""]
lines += [f"![{path.stem}]({path.name})" for path in sorted(args.out.glob("*.png"))]
(args.out / "report.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
print(f"wrote {args.out / 'report.md'}")
