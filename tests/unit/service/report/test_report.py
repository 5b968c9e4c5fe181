"""Numbers and figures of a report, against what they must be on rows made by hand."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from darksight_service.report import Findings, build_page, find
from darksight_service.report.figures import all_figures
from darksight_service.report.figures.chart import packed
from darksight_service.report.figures.classifier import calibration_figure, confusion_figure
from darksight_service.report.figures.comparison import accuracy_figure, foreign_figure, local_figure
from darksight_service.report.figures.map import map_figure
from darksight_service.report.figures.panels import class_groups, small_multiples
from darksight_service.report.figures.paths import path_figure
from darksight_service.report.images import ReferenceFiles, read_images
from darksight_service.report.references.pictures import encode_png
from numpy.typing import NDArray

from darksight_core.errors import ConfigError
from darksight_core.map.palette import class_colours
from darksight_core.predictions import Predictions, from_arrays
from darksight_core.runtime.scorer import Scorer
from tests.support.bundles import make_bundle

CLASSES = ("class 0", "class 1", "class 2")
KINDS = {"u1": np.uint8, "u2": np.uint16, "i4": np.int32, "f4": np.float32}


def numbers(value: dict[str, str]) -> NDArray[Any]:
    """What plotly reads out of a packed array."""
    return np.frombuffer(base64.b64decode(value["bdata"]), dtype=KINDS[value["dtype"]])


def make_rows(n: int, classes: int = 3, *, seed: int = 1, labels: str = "drawn") -> Predictions:
    """Rows whose labels are drawn from their probabilities, always right, or absent."""
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(classes, 0.4), n)
    truth = (np.cumsum(probs, axis=1) < rng.random(n)[:, None]).sum(axis=1).clip(max=classes - 1)
    given = {"drawn": truth, "right": probs.astype(np.float32).argmax(axis=1), "none": None}[labels]
    return from_arrays(probs.astype(np.float32), labels=given)


def make_findings(rows: Predictions, **options: Any) -> Findings:
    """Findings on the bundle of the tests, with few resamples."""
    bundle = make_bundle(classes=rows.n_classes)
    return find(bundle, Scorer.of(bundle, compiled=False), rows, **{"resamples": 5, **options})


@pytest.fixture(scope="module")
def found() -> Findings:
    """Findings on 300 rows, with foreign ones."""
    return make_findings(make_rows(300), foreign={"flat.npz": make_rows(60, seed=2, labels="none")})


def test_the_map_shows_every_row_once_in_each_colouring(found: Findings) -> None:
    """Dots and crosses of a mode are all rows; crosses are the mistakes; stars are the centres."""
    figure = map_figure(found)
    shown = [trace for trace in figure.data if trace.get("visible") is True and "customdata" in trace]
    rows = np.concatenate([numbers(trace["customdata"]) for trace in shown])
    crosses = next(trace for trace in shown if trace["name"] == "errors")

    assert sorted(rows.tolist()) == list(range(300))
    assert found.wrong is not None
    assert sorted(numbers(crosses["customdata"]).tolist()) == np.flatnonzero(found.wrong).tolist()
    np.testing.assert_allclose(numbers(figure.data[-1]["x"]), found.bundle.embedder.student.means[:, 0], rtol=1e-6)
    assert [button["label"] for button in figure.layout["updatemenus"][0]["buttons"]] == [
        "predicted class",
        "true class",
        "entropy",
    ]


def test_the_map_marks_rows_on_its_border_and_lone_centres() -> None:
    """Squares are the rows on the border, and a centre that no point of its class is near has four points."""
    found = make_findings(make_rows(300))
    found.points[:7] = [found.bundle.embedder.bound, 0.0]
    found.predicted[found.predicted == 2] = 1

    figure = map_figure(found)

    border = next(trace for trace in figure.data if trace.get("name") == "on the border")
    assert numbers(border["customdata"]).tolist() == list(range(7))
    assert figure.data[-2]["text"][2] == "✧"
    assert "Squares are 7 rows on the border of the map" in figure.limits


def test_the_confusion_matrix_counts_rows(found: Findings) -> None:
    """Its sum is the number of rows, its diagonal the right ones, and the figure has the same cells."""
    counts, figure = found.confusion(), confusion_figure(found)

    assert counts is not None
    assert figure is not None
    assert found.wrong is not None
    assert counts.sum() == 300
    assert int(np.trace(counts)) == int((~found.wrong).sum())
    texts = sorted(int(text.partition("<br>")[0]) for text in np.ravel(figure.data[0]["text"]))
    assert texts == sorted(counts.ravel().tolist())
    assert len(numbers(figure.data[1]["x"])) == 3
    assert sum(cell["rows"] for cell in found.as_dict()["confusion"]) == 300


def test_a_matrix_of_two_classes_is_readable() -> None:
    """Each cell is coloured by its share of the true class on a scale from 0 to 1, so that no rows are drawn white."""
    probs = np.repeat([[0.9, 0.1], [0.4, 0.6]], 376, axis=0).astype(np.float32)
    found = make_findings(from_arrays(probs, labels=np.tile([0, 0, 1, 1], 188)))

    figure = confusion_figure(found)

    assert figure is not None
    cells = figure.data[0]
    assert (cells["zmin"], cells["zmax"], len(figure.data)) == (0.0, 1.0, 1)
    np.testing.assert_allclose(numbers(cells["z"]), np.sqrt(0.5), rtol=1e-6)


def test_many_classes_make_a_small_page() -> None:
    """With 300 classes the figures stay readable: 50 classes in the matrix, 12 panels, names that do not overlap."""
    found = make_findings(make_rows(600, 300))
    figures = {figure.name: figure for figure in all_figures(found)}

    page = build_page(found, list(figures.values()))

    assert len(figures["global-fidelity"].data[0]["x"]) == 50
    assert len({trace["xaxis"] for trace in figures["small-multiples"].data}) == 12
    stars = figures["map"].data[-1]
    assert 10 < sum(map(bool, stars["text"])) < 300
    # plotly.js is 2 MB of it.
    assert len(page) < 4_000_000


def test_classes_have_one_colour(found: Findings) -> None:
    """The map and the paths colour a class alike, whatever the number of classes."""
    colours = class_colours(3)
    dots = {trace["name"]: trace["marker"]["color"] for trace in map_figure(found).data if trace.get("name") in CLASSES}
    lines = {
        trace["name"]: trace["line"]["color"] for trace in path_figure(found, 0).data if trace.get("name") in CLASSES
    }

    assert dots == dict(zip(CLASSES, colours, strict=True))
    assert lines.items() <= dots.items()
    assert class_colours(1000)[:3] == colours
    assert len(set(class_colours(1000))) > 900


def test_the_calibration_curve_is_that_of_the_rows(found: Findings) -> None:
    """Bins weigh all rows, and the caption has the ECE."""
    figure = calibration_figure(found)

    assert figure is not None
    assert found.reliability is not None
    assert found.labels is not None
    weights = np.array(figure.data[1]["customdata"])
    assert weights.sum() == 300
    accuracy = float((found.predicted == found.labels).mean())
    assert weights @ np.array(figure.data[1]["y"]) / 300 == pytest.approx(accuracy)
    assert f"{found.reliability.ece:.4f}" in figure.caption


def test_accuracy_curves_end_at_the_accuracy_of_all_rows(found: Findings) -> None:
    """Every curve ends where all rows are kept, and coverage never falls along it."""
    figure = accuracy_figure(found)

    assert figure is not None
    assert found.comparison is not None
    assert found.comparison.errors is not None
    for trace in figure.data:
        np.testing.assert_allclose(numbers(trace["x"])[-1], 1.0)
        np.testing.assert_allclose(numbers(trace["y"])[-1], 1.0 - found.comparison.errors.mean(), rtol=1e-6)
        assert (np.diff(numbers(trace["x"])) > 0).all()


def test_foreign_and_local_figures_show_the_measured_numbers(found: Findings) -> None:
    """AUROC and M_k are those of the findings."""
    foreign, local = foreign_figure(found), local_figure(found)

    assert found.comparison is not None
    assert local is not None
    assert found.measures.local_fidelity is not None
    expected = {round(figures.auroc, 4) for figures in found.comparison.ood["flat.npz"].values()}
    assert foreign is not None
    assert set(foreign.data[0]["x"]) == expected
    np.testing.assert_allclose(local.data[0]["y"], found.measures.local_fidelity.teacher, atol=1e-6)


def test_paths_may_be_named_or_drawn() -> None:
    """A pair and a line give two figures, whose lines are the student's probabilities."""
    found = make_findings(make_rows(120), paths=[(0, 2)], curves=[np.array([[0.0, 0.0], [1.0, 1.0]])])

    assert [name for name, _ in found.paths] == ["class 0 to class 2", "drawn line 1"]
    figure = path_figure(found, 0)
    line = next(trace for trace in figure.data if trace["name"] == "class 0")
    np.testing.assert_allclose(numbers(line["y"]), found.paths[0][1].probs[:, 0], rtol=1e-5)


def test_classes_that_are_mixed_up_share_a_panel() -> None:
    """Of four classes in two confused pairs, each pair is a group of two."""
    probs = np.array([[0.6, 0.0, 0.4, 0.0], [0.0, 0.6, 0.0, 0.4]]).repeat(5, axis=0)

    groups = class_groups(np.log(np.maximum(probs, 1e-30)), size=2)

    assert sorted(sorted(group) for group in groups) == [[0, 2], [1, 3]]


def test_many_classes_get_small_multiples() -> None:
    """Twelve classes make two panels that show each class once."""
    found = make_findings(make_rows(240, 12))
    figure = small_multiples(found)

    assert figure is not None
    stars = [trace["hovertext"] for trace in figure.data if "hovertext" in trace]
    assert sorted(name for panel in stars for name in panel) == sorted(found.class_names)


@pytest.mark.parametrize(
    ("rows", "classes", "labels"),
    [(200, 2, "drawn"), (120, 3, "none"), (120, 3, "right"), (3, 3, "drawn"), (1, 3, "none")],
    ids=["two classes", "no labels", "no mistakes", "three rows", "one row"],
)
def test_what_rows_cannot_tell_is_left_out(rows: int, classes: int, labels: str) -> None:
    """Any sound file gives a page whose numbers are JSON; what is missing is said in a note."""
    found = make_findings(make_rows(rows, classes, labels=labels))
    figures = all_figures(found)
    page = build_page(found, figures)

    json.dumps(found.as_dict(), allow_nan=False)
    assert figures[0].name == "map"
    assert {figure.name for figure in figures} & {"global-fidelity"} == (
        set() if labels == "none" else {"global-fidelity"}
    )
    assert page.count('class="plot"') == len(figures)
    assert bool(found.notes) == (labels == "none" or rows < 40)


def test_references_are_shown_beside_their_rows(found: Findings, tmp_path: Path) -> None:
    """As pictures, sounds and texts that are data of the page, and never as markup."""
    (tmp_path / "a.png").write_bytes(encode_png(np.zeros((200, 100), dtype=np.uint8)))
    (tmp_path / "b.wav").write_bytes(b"RIFF\x04\x00\x00\x00WAVE")
    (tmp_path / "c.txt").write_text("</bdi><img src=x>", encoding="utf-8")
    references = ["a.png", "b.wav", "c.txt", "<img src=y>", "https://evil.example/x.png", ""] * 50

    page = build_page(found, [], ReferenceFiles(tmp_path, references))

    assert 'src="data:image/png;base64,' in page
    assert '<audio controls src="data:audio/wav;base64,' in page
    assert "&lt;/bdi&gt;&lt;img src=x&gt;" in page
    assert "&lt;img src=y&gt;" in page
    assert "<img src=" not in page
    assert 'src="https:' not in page


def test_names_cannot_leave_their_place() -> None:
    """A class name with HTML and a script's end stays text, in HTML and in JSON."""
    evil = '</script><img src=x onerror="alert(1)">'
    bundle = make_bundle()
    named = bundle.manifest | {"class_names": [evil, "b", "c"]}
    rows = make_rows(60)
    found = find(replace(bundle, manifest=named), Scorer.of(bundle, compiled=False), rows, resamples=0)

    page = build_page(found, all_figures(found))

    assert found.class_names[0] == evil
    assert "<img src=x" not in page
    assert r"\u003c/script\u003e\u003cimg src=x" in page
    assert "&lt;/script&gt;&lt;img src=x" in page


def test_names_are_no_markup_for_plotly() -> None:
    """Tags, entities and templates in names of classes and files reach no figure: plotly would follow a link in one."""
    evil = ["<a href='//x'>a</a>", "b &amp; %{x}", "c"]
    bundle = make_bundle()
    named = replace(bundle, manifest=bundle.manifest | {"class_names": evil})
    foreign = {"<b>flat": make_rows(60, seed=2, labels="none")}
    found = find(named, Scorer.of(bundle, compiled=False), make_rows(60), foreign, resamples=0)

    drawn = json.dumps([figure.as_plotly() for figure in all_figures(found)], ensure_ascii=False)

    assert "a href" in drawn
    for markup in ("<a ", "<b>", "b &amp; ", "b &amp;amp; %{x"):
        assert markup not in drawn
    assert "b &amp;amp; %&#123;x}" in drawn


def test_packed_numbers_come_back() -> None:
    """Small whole numbers take a byte, larger ones more, others four; 2D arrays have a shape."""
    assert packed(np.array([0, 255]))["dtype"] == "u1"
    assert packed(np.array([0, 256]))["dtype"] == "u2"
    assert numbers(packed(np.array([0, 70_000]))).tolist() == [0, 70_000]
    assert packed(np.ones((2, 3)))["shape"] == "2, 3"


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3)], ids=["grey", "colour"])
def test_thumbnails_are_png(shape: tuple[int, ...]) -> None:
    """Header and pixels of the file are those of the picture."""
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)

    data = encode_png(image)

    width, height = struct.unpack(">II", data[16:24])
    start = data.index(b"IDAT") + 4
    raw = np.frombuffer(zlib.decompress(data[start : data.index(b"IEND") - 8]), dtype=np.uint8).reshape(5, -1)
    assert (width, height) == (7, 5)
    np.testing.assert_array_equal(raw[:, 1:].reshape(shape), image)


def test_images_are_bytes_and_bad_ones_refused(tmp_path: Path) -> None:
    """Numbers up to one are scaled to 255; a wrong shape or count, and a file that is none, are refused."""
    np.save(tmp_path / "images.npy", np.ones((2, 4, 4, 1), dtype=np.float32))
    (tmp_path / "text.npz").write_text("no zip", encoding="utf-8")

    images = read_images(tmp_path / "images.npy", 2)

    assert images.shape == (2, 4, 4)
    assert (images == 255).all()
    with pytest.raises(ConfigError, match="2 images, but the predictions have 3 rows"):
        read_images(tmp_path / "images.npy", 3)
    with pytest.raises(ConfigError, match=r"is not an \.npy or \.npz"):
        read_images(tmp_path / "text.npz", 2)
    with pytest.raises(ConfigError, match="does not exist"):
        read_images(tmp_path / "none.npz", 2)
