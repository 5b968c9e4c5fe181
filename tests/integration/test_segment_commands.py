"""Commands with --by: each value of a tag has its own threshold, figures and evidence."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from darksight_service.cli import main
from darksight_service.report.references.files import MAX_BYTES
from darksight_service.report.references.pictures import as_data_uri, encode_png, read_picture

from darksight_core.bundle import read_bundle, write_bundle
from tests.support.bundles import make_bundle

CLASSES, ROWS = 3, 1_200


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle, and labelled rows of two cameras of which one is often wrong, and of a third with few rows."""
    folder, rng = tmp_path_factory.mktemp("segments"), np.random.default_rng(5)
    write_bundle(folder / "model.safetensors", make_bundle(classes=CLASSES))
    probs = rng.dirichlet(np.full(CLASSES, 0.3), ROWS).astype(np.float32)
    probs /= probs.sum(axis=1, keepdims=True)
    camera = rng.choice(["good", "poor", "rare"], ROWS, p=[0.6, 0.38, 0.02])
    wrong = rng.random(ROWS) < np.where(camera == "good", 0.3, 1.0) * (1.0 - probs.max(axis=1))
    labels = np.where(wrong, (probs.argmax(axis=1) + 1) % CLASSES, probs.argmax(axis=1))
    np.savez(folder / "rows.npz", probs=probs, labels=labels, tag_camera=camera)
    return folder


def run(folder: Path, capsys: pytest.CaptureFixture[str], command: str, *options: str) -> dict[str, Any]:
    """The JSON of a command on the rows."""
    code = main([command, str(folder / "model.safetensors"), str(folder / "rows.npz"), *options, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code in (0, None)
    return found


def test_calibrate_writes_thresholds_of_segments(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The bundle enforces them, its certificate states them, and the command prints them."""
    out = folder / "by.safetensors"
    options = ("--target-accuracy", "0.9", "--by", "camera", "--out", str(out), "--overwrite")

    found = run(folder, capsys, "calibrate", *options)
    main(["calibrate", str(folder / "model.safetensors"), str(folder / "rows.npz"), *options])
    text = capsys.readouterr().out

    gate = read_bundle(out).gate
    assert gate is not None
    assert gate.segments is not None
    assert gate.segments.thresholds["good"] < gate.segments.thresholds["poor"]
    uses = {each["value"]: each["uses"] for each in found["certificate"]["reject"]["segments"]["values"]}
    assert uses == {"good": "own", "poor": "own", "rare": "pooled"}
    assert "separately" in text
    assert "with confidence 0.95 for each of them" in text


def test_calibrate_by_class_ranks_within_the_predicted_class(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The bundle has a limit for each class, and the promise says which classes have their own."""
    out = folder / "classes.safetensors"

    found = run(folder, capsys, "calibrate", "--alpha", "0.1", "--by-class", "--out", str(out), "--overwrite")

    gate = read_bundle(out).gate
    assert gate is not None
    assert gate.class_limits is not None
    assert len(gate.class_limits) == CLASSES
    assert "predicted classes separately" in found["certificate"]["outlier"]["promise"]


def test_calibrate_per_class_gives_each_class_a_threshold(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The bundle enforces them, and the command prints acceptance by predicted class."""
    out = folder / "per-class.safetensors"
    options = ("--target-accuracy", "0.85", "--per-class", "--out", str(out), "--overwrite")

    found = run(folder, capsys, "calibrate", *options)
    main(["calibrate", str(folder / "model.safetensors"), str(folder / "rows.npz"), *options])
    text = capsys.readouterr().out

    gate = read_bundle(out).gate
    assert gate is not None
    assert gate.class_thresholds is not None
    assert len(set(gate.class_thresholds.tolist())) > 1
    assert "in all of them together" in found["certificate"]["reject"]["promise"]
    assert [each["class"] for each in found["by_class"]] == list(range(CLASSES))
    assert "with confidence 0.95 for all of them together" in text
    assert "LOW_CONFIDENCE" in text


def test_calibrate_certifies_precision_and_recall_of_a_class(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Feasible ones are in the bundle; too much of both exits with status 3 and says what is attainable."""
    model, rows, out = (str(folder / name) for name in ("model.safetensors", "rows.npz", "precise.safetensors"))
    name = read_bundle(model).class_names[1]

    def calibrate(precision: float, recall: float) -> int | None:
        both = ("--target-precision", f"{name}={precision}", "--target-recall", f"{name}={recall}")
        return main(["calibrate", model, rows, *both, "--out", out, "--overwrite"])

    assert calibrate(0.8, 0.3) in (0, None)
    assert f"reject rows predicted as {name} if msp < " in capsys.readouterr().out
    gate = read_bundle(out).gate
    assert gate is not None
    assert gate.class_thresholds is not None
    assert np.isinf(gate.class_thresholds[[0, 2]]).all()
    assert calibrate(0.9, 0.65) == 3
    assert "leaves a recall of 0." in capsys.readouterr().out
    assert calibrate(0.99, 0.65) == 3
    assert "rows support 0." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--target-precision", "fraud=0.9"), "classes are "),
        (("--target-recall", "0.9"), "give CLASS=SHARE"),
        (("--target-recall", "{0}=1.5"), "give CLASS=SHARE"),
        (("--target-recall", "{0}=0.5", "--target-recall", "{0}=0.6"), "given twice"),
        (("--target-recall", "{0}=0.5", "--coverage", "0.9"), "excludes other rules"),
        (("--per-class", "--alpha", "0.1"), "needs a target accuracy"),
    ],
)
def test_bad_targets_of_classes_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str
) -> None:
    """The message names the option and what to give."""
    model, rows, out = (str(folder / name) for name in ("model.safetensors", "rows.npz", "refused.safetensors"))
    given = [each.format(read_bundle(model).class_names[0]) for each in options]

    code = main(["calibrate", model, rows, *given, "--out", out])

    assert code == 2
    assert message in capsys.readouterr().err


def test_a_rare_class_that_is_never_accepted_is_warned_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And so is an accuracy that always answering the most frequent class would keep."""
    rng, n = np.random.default_rng(0), 2_000
    top = np.where(np.arange(n) % 100 == 0, rng.uniform(0.5, 0.6, n), rng.uniform(0.9, 0.999, n))
    probs = np.stack([top, 1.0 - top, np.zeros(n)], axis=1)
    labels = np.zeros(n, dtype=np.int64)
    rare = np.arange(n) % 100 == 0
    probs[rare], labels[rare] = probs[rare][:, [1, 0, 2]], rng.integers(0, 2, int(rare.sum()))
    np.savez(folder / "rare.npz", probs=probs, labels=labels)
    out = ("--out", str(folder / "rare.safetensors"))

    main(["calibrate", str(folder / "model.safetensors"), str(folder / "rare.npz"), "--target-accuracy", "0.998", *out])

    errors = capsys.readouterr().err
    assert "0.0% of 20 rows predicted as" in errors
    assert "so always answering that keeps the promised 0.998" in errors


def test_score_uses_the_threshold_of_the_segment(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The decisions on a file are those that the certificate counted."""
    out = folder / "decided.safetensors"
    made = run(folder, capsys, "calibrate", "--target-accuracy", "0.9", "--by", "camera", "--out", str(out))
    main(["score", str(out), str(folder / "rows.npz"), "--out", str(folder / "scores.csv"), "--json"])

    tally = json.loads(capsys.readouterr().out)

    assert tally["accepted"] == round(made["certificate"]["observed"]["coverage"] * ROWS)


def test_score_needs_the_tag_of_a_gate_by_segment(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without it every row would silently have the pooled threshold, which --untagged pooled asks for."""
    gate, rows, parts = (folder / name for name in ("tagged.safetensors", "untagged.npz", "untagged.parquet"))
    run(folder, capsys, "calibrate", "--target-accuracy", "0.9", "--by", "camera", "--out", str(gate))
    probs = np.load(folder / "rows.npz")["probs"]
    np.savez(rows, probs=probs)
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({f"prob_{k}": probs[:, k] for k in range(CLASSES)}), parts)

    for file, out in ((rows, folder / "untagged.csv"), (parts, folder / "parts")):
        assert main(["score", str(gate), str(file), "--out", str(out), "--quiet"]) == 2
        assert "has no column tag_camera" in capsys.readouterr().err
        assert not out.exists()
        assert main(["score", str(gate), str(file), "--out", str(out), "--quiet", "--untagged", "pooled"]) in (0, None)


def test_columns_in_another_order_are_scored_alike(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Named columns are reordered as those of data frames are, and rows with permuted labels get a hint."""
    bundle = read_bundle(folder / "model.safetensors")
    data, names = np.load(folder / "rows.npz"), np.array(bundle.class_names)
    order = [2, 0, 1]
    np.savez(folder / "named.npz", probs=data["probs"], labels=names[data["labels"]], class_names=names)
    np.savez(folder / "turned.npz", probs=data["probs"][:, order], labels=data["labels"], class_names=names[order])
    np.savez(folder / "permuted.npz", probs=data["probs"][:, order], labels=names[data["labels"]])
    scored = []
    for name in ("named", "turned"):
        out = folder / f"{name}.scores.npz"
        main(["score", str(folder / "model.safetensors"), str(folder / f"{name}.npz"), "--out", str(out), "--quiet"])
        scored.append(dict(np.load(out)))
    capsys.readouterr()

    options = ("--coverage", "0.9", "--out", str(folder / "never.safetensors"), "--overwrite")
    main(["calibrate", str(folder / "model.safetensors"), str(folder / "permuted.npz"), *options])

    assert scored[0]["p_value"].tolist() == scored[1]["p_value"].tolist()
    assert scored[0]["predicted"].tolist() == scored[1]["predicted"].tolist()
    assert "permuted.npz: the classes look permuted" in capsys.readouterr().err


def test_evaluate_prints_the_share_of_foreign_rows_that_is_flagged(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside AUROC stands what the p-values do at alpha, for foreign and for known rows."""
    foreign = folder / "foreign.npz"
    np.savez(foreign, probs=np.full((60, CLASSES), 1.0 / CLASSES))
    options = ("--ood", str(foreign), "--resamples", "0")

    flagged = run(folder, capsys, "evaluate", *options)["flagged"]
    main(["evaluate", str(folder / "model.safetensors"), str(folder / "rows.npz"), *options])

    assert flagged["alpha"] == 0.01
    assert flagged["ood"].keys() == {str(foreign)}
    text = f"{flagged['ood'][str(foreign)]:.2%} of these rows, and {flagged['known']:.2%} of the known ones"
    assert text in capsys.readouterr().out


def test_sets_of_a_gate_with_segments_need_their_tag(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows without it would be rejected by another threshold than those that get sets."""
    out, other = folder / "segments.safetensors", folder / "other.npz"
    run(folder, capsys, "calibrate", "--target-accuracy", "0.9", "--by", "camera", "--out", str(out))
    data = dict(np.load(folder / "rows.npz"))
    np.savez(other, probs=data["probs"][::-1], labels=data["labels"][::-1])

    code = main(["calibrate", str(out), str(other), "--sets", "0.8", "--out", str(folder / "sets.safetensors")])

    assert code == 2
    assert "has no column tag_camera" in capsys.readouterr().err


def test_references_have_no_thresholds(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The service does not decide by them, so a promise about them would not be kept."""
    files = [str(folder / name) for name in ("model.safetensors", "rows.npz")]

    assert main(["calibrate", *files, "--coverage", "0.9", "--by", "reference", "--out", str(folder / "no")]) == 2
    assert "names the input of one row" in capsys.readouterr().err


def test_evaluate_and_drift_have_figures_of_segments(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Accuracy with intervals of each camera, and the evidence of each."""
    figures = run(folder, capsys, "evaluate", "--by", "camera", "--resamples", "2")["segments"]
    evidence = run(folder, capsys, "drift", "--by", "camera")["segments"]
    main(["drift", str(folder / "model.safetensors"), str(folder / "rows.npz"), "--by", "camera"])
    text = capsys.readouterr().out

    assert figures["key"] == "camera"
    by_value = {each["value"]: each for each in figures["values"]}
    assert by_value["good"]["accuracy_low"] > by_value["poor"]["accuracy_high"]
    assert {each["value"] for each in evidence["segments"]} == {"good", "poor", "rare"}
    assert evidence["level"] == 0.05
    assert not any(each["is_changed"] for each in evidence["segments"])
    assert "No segment has changed" in text
    assert "explained by" not in text


def test_a_file_without_the_tag_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the tags that it has."""
    with pytest.raises(SystemExit) as end:
        raise SystemExit(main(["drift", str(folder / "model.safetensors"), str(folder / "rows.npz"), "--by", "city"]))

    assert end.value.code == 2
    assert "has no column tag_city; it has tag_camera" in capsys.readouterr().err


def test_a_report_shows_pictures_of_references_and_segments(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From files below the folder only; a path or a link that leads out of it, and a large file, are named instead."""
    inputs = folder / "inputs"
    (inputs / "day 1").mkdir(parents=True)
    secret = encode_png(np.full((16, 16, 3), (1, 2, 3), dtype=np.uint8))
    (folder / "secret.png").write_bytes(secret)
    (inputs / "link.png").symlink_to(folder / "secret.png")
    (inputs / "large.png").write_bytes(secret)
    os.truncate(inputs / "large.png", MAX_BYTES + 1)
    picture = np.zeros((16, 16, 3), dtype=np.uint8)
    picture[:, 8:] = (200, 80, 40)
    (inputs / "day 1" / "a.png").write_bytes(encode_png(picture))
    rows = dict(np.load(folder / "rows.npz"))
    names = ["day 1/a.png", "../secret.png", str(folder / "secret.png"), "link.png", "large.png"]
    rows["tag_reference"] = np.resize(names, ROWS)
    rows["tag_camera"] = np.where(rows["tag_camera"] == "good", "<script>alert(1)</script>", rows["tag_camera"])
    np.savez(folder / "referenced.npz", **rows)
    out = folder / "page.html"

    code = main(
        ["report", str(folder / "model.safetensors"), str(folder / "referenced.npz"),
         "--reference-dir", str(inputs), "--out", str(out)]
    )  # fmt: skip

    assert code in (0, None)
    assert str(out) in capsys.readouterr().err
    page = out.read_text(encoding="utf-8")
    assert as_data_uri(picture) in page
    assert as_data_uri(read_picture(secret)) not in page
    for problem in ("is not a path below the folder", "there is no such file below", "is larger than 16 MiB"):
        assert problem in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script>alert(1)" not in page


def test_a_report_needs_the_folder_and_the_tag(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both are checked before anything is computed."""
    command = ["report", str(folder / "model.safetensors"), str(folder / "rows.npz"), "--out", str(folder / "no.html")]
    for given, words in ((folder / "rows.npz", "is not a directory"), (folder, "reference")):
        assert main([*command, "--reference-dir", str(given)]) == 2
        assert words in capsys.readouterr().err
    assert not (folder / "no.html").exists()
