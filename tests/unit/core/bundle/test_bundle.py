"""Bundles: what is written is read back, and everything else is refused by its own name."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import random
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from darksight_core.bundle import (
    MAX_FILE,
    MAX_HEADER,
    Bundle,
    Probes,
    Reference,
    SplitSketches,
    container,
    decode_bundle,
    diff,
    encode_bundle,
    make_manifest,
    read_bundle,
    write_bundle,
)
from darksight_core.errors import BundleError, ConfigError
from darksight_core.gate.gate import Gate
from darksight_core.guarantees.calibration import Calibration
from darksight_core.guarantees.conformal import cutoff
from darksight_core.predictions.sketch import RowSketch
from darksight_core.runtime.scorer import Scorer
from tests.support.bundles import CERTIFICATE, make_bundle, make_embedder
from tests.support.errors import raises_code

Json = dict[str, Any]


@functools.cache
def small() -> Bundle:
    """The bundle that most tests start from; it cannot be changed."""
    return make_bundle()


@functools.cache
def small_bytes() -> bytes:
    """Its file."""
    return encode_bundle(small())


def parse(data: bytes) -> tuple[Json, bytes]:
    """Header and tensors of a file, by the letter of the format."""
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def build(header: Json | bytes, body: bytes = b"", length: int | None = None) -> bytes:
    """Inverse of `parse`, for any header."""
    text = header
    if not isinstance(text, bytes):
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
    return (len(text) if length is None else length).to_bytes(8, "little") + text + body


def content_hash(tensors: dict[str, NDArray[Any]]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes, as documented."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype.name} {list(tensors[name].shape)}\n".encode())
        digest.update(tensors[name].tobytes())
    return digest.hexdigest()


def forge(
    change_tensors: Callable[[dict[str, NDArray[Any]]], object] | None = None,
    change_manifest: Callable[[Json], object] | None = None,
    manifest_text: str | None = None,
    data: bytes | None = None,
) -> bytes:
    """The small bundle with other tensors or another manifest, and with all hashes right."""
    data = small_bytes() if data is None else data
    tensors = safetensors.numpy.load(data)
    manifest = json.loads(parse(data)[0]["__metadata__"]["darksight"])
    if change_tensors is not None:
        change_tensors(tensors)
    manifest["tensors"] = {name: [array.dtype.name, list(array.shape)] for name, array in tensors.items()}
    manifest["content_sha256"] = content_hash(tensors)
    if change_manifest is not None:
        change_manifest(manifest)
    text = container.canonical_json(manifest) if manifest_text is None else manifest_text
    header, body = parse(safetensors.numpy.save(tensors))
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return build({"__metadata__": {"darksight": text, "darksight_sha256": digest}, **header}, body)


def refused(data: bytes) -> BundleError:
    """The error for which these bytes are refused; anything but a BundleError fails the test."""
    with pytest.raises(BundleError) as caught:
        decode_bundle(data, "some.safetensors")
    assert str(caught.value).startswith("some.safetensors: ")
    assert caught.value.details["source"] == "some.safetensors"
    return caught.value


def test_a_bundle_comes_back(tmp_path: Path) -> None:
    """What was written is read, scores the same, and knows its file and version."""
    path = tmp_path / "map.safetensors"

    version = write_bundle(path, small())
    found = read_bundle(path)

    assert version == found.version == hashlib.sha256(path.read_bytes()).hexdigest()
    assert found.path == path
    assert found.short_version == version[:12]
    assert found.class_names == ("class 0", "class 1", "class 2")
    assert found.manifest["fidelity"]["heldout"]["kl_sym"] == 0.0625
    probs = np.random.default_rng(5).dirichlet(np.ones(3), 20)
    for name in ("points", "log_density", "log_kde", "outlier_score", "p_value"):
        scores = [Scorer.of(b, compiled=False).score(probs) for b in (small(), found)]
        assert np.array_equal(getattr(scores[0], name), getattr(scores[1], name))


def test_the_scorer_loads_a_bundle(tmp_path: Path) -> None:
    """`Scorer.load` takes names and version from the file."""
    path = tmp_path / "map.safetensors"
    version = write_bundle(path, small())

    scorer = Scorer.load(path)

    assert (scorer.version, scorer.class_names) == (version, small().class_names)


def test_save_load_save_is_identical(tmp_path: Path) -> None:
    """A bundle that was read is written to the same bytes."""
    first, second = tmp_path / "a.safetensors", tmp_path / "b.safetensors"

    write_bundle(first, small())
    write_bundle(second, read_bundle(first))

    assert first.read_bytes() == second.read_bytes()


def test_save_load_save_is_identical_for_any_prior() -> None:
    """The same for twenty random priors."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        data = encode_bundle(make_bundle(rows=40, classes=10, log_prior=rng.normal(size=10)))

        assert encode_bundle(decode_bundle(data)) == data


def test_equal_content_gives_equal_bytes() -> None:
    """There is no time, no chance and no order of a dictionary in a file."""
    bundle = small()
    turned = replace(bundle, manifest=dict(reversed(list(bundle.manifest.items()))))

    assert all(encode_bundle(other) == small_bytes() for other in (bundle, make_bundle(), turned))
    assert encode_bundle(make_bundle(seed=1)) != small_bytes()


def test_time_is_written_when_given() -> None:
    """A time of creation is part of the content."""
    bundle = replace(small(), manifest={**small().manifest, "created_at": "2026-01-01T00:00:00Z"})

    assert decode_bundle(encode_bundle(bundle)).manifest["created_at"] == "2026-01-01T00:00:00Z"


def test_the_file_is_plain_safetensors() -> None:
    """The library reads the same tensors, and the hashes are what the format says."""
    tensors = safetensors.numpy.load(small_bytes())
    metadata = parse(small_bytes())[0]["__metadata__"]
    manifest = json.loads(metadata["darksight"])

    assert {name.split(".")[0] for name in tensors} == {
        "embed",
        "features",
        "kde",
        "outlier_score",
        "calibration",
        "reference",
        "probe",
        "split",
    }
    assert tensors["probe.inputs"].dtype == np.float32
    assert manifest["schema_version"] == 3
    assert manifest["content_sha256"] == content_hash(tensors)
    assert metadata["darksight_sha256"] == hashlib.sha256(metadata["darksight"].encode()).hexdigest()
    assert manifest["splits"]["fit"]["sha256"] == small().splits.fit.sha256
    assert forge() == small_bytes()


def test_a_typical_file_is_small() -> None:
    """References and sketches of many rows stay within their caps."""
    bundle = make_bundle()
    many = np.random.default_rng(0).normal(size=(30_000, 2))
    bundle = replace(bundle, reference=Reference.of(many, np.eye(3)[np.zeros(30_000, dtype=int)]))

    data = encode_bundle(bundle)

    assert len(bundle.reference.points) == 20_000
    assert len(data) < 550_000


def test_strange_names_survive() -> None:
    """Class names and settings may have any character, nested settings any JSON value."""
    names = ('"', "\\", "\u00e9\u4e16\U0001f600\x01\n\u2028")
    bundle = replace(small(), manifest=make_manifest(names, {"a": [1, None, {"b": 1e-300}], "c": True}, {}))

    found = decode_bundle(encode_bundle(bundle))

    assert found.class_names == names
    assert found.manifest["fit_config"] == {"a": [1, None, {"b": 1e-300}], "c": True}


def test_a_bundle_without_calibration() -> None:
    """With shares (1, 0, 0) there are no calibration rows, and every p-value is 1."""
    bundle = decode_bundle(encode_bundle(make_bundle(shares=(1.0, 0.0, 0.0))))

    assert len(bundle.calibration) == 0
    assert (bundle.probes.p_value == 1.0).all()


def test_arrays_in_any_layout_are_written_right() -> None:
    """The library writes memory as it lies; a transposed array must not come back wrong."""
    turned = np.asfortranarray(small().probes.inputs)
    bundle = replace(small(), probes=replace(small().probes, inputs=turned))

    assert not turned.flags.c_contiguous
    assert encode_bundle(bundle) == small_bytes()


def test_reading_leaves_no_array_to_change() -> None:
    """Arrays of a bundle are read-only, so no user of it can change another's scores."""
    found = decode_bundle(small_bytes())

    assert not found.probes.inputs.flags.writeable
    assert not found.reference.points.flags.writeable
    assert not found.splits.fit.hashes.flags.writeable


def test_no_file(tmp_path: Path) -> None:
    """A path that leads nowhere, to a folder, to a pipe or beyond a file is refused."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"")

    for name, code in [
        ("none", "bundle_missing"),
        (".", "bundle_not_a_file"),
        ("pipe", "bundle_not_a_file"),
        ("file/below", "bundle_unreadable"),
        ("a\0b", "bundle_unreadable"),
        ("file", "bundle_truncated"),
    ]:
        with pytest.raises(BundleError) as caught:
            read_bundle(tmp_path / name)
        assert caught.value.code == code
        assert str(tmp_path) in str(caught.value)


@contextmanager
def without_root() -> Iterator[None]:
    """Drop the rights of root, who may read every file, within the block."""
    user = os.geteuid()
    os.seteuid(user or 65534)
    yield
    os.seteuid(user)


def test_a_file_without_permission(tmp_path: Path) -> None:
    """A file that may not be read says so."""
    path = tmp_path / "map.safetensors"
    write_bundle(path, small())
    path.chmod(0)

    with without_root(), raises_code("bundle_unreadable", match="ermission"):
        read_bundle(path)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    """A file above the cap is refused by its size alone."""
    path = tmp_path / "map.safetensors"
    with path.open("wb") as file:
        file.truncate(MAX_FILE + 1)

    with raises_code("bundle_size"):
        read_bundle(path)


def nested(depth: int) -> bytes:
    """A JSON object with lists in lists."""
    return b'{"a":' + b"[" * depth + b"]" * depth + b"}"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "bundle_truncated"),
        (b"\x00" * 9, "bundle_truncated"),
        (b"\x00" * 100, "bundle_format"),
        (b"PK\x03\x04" + b"\x00" * 100, "bundle_format"),
        (b"\x80\x04\x95" + b"." * 100, "bundle_format"),
        (build(b"{}", length=2**63), "bundle_format"),
        (build(b"{}", length=MAX_HEADER + 1), "bundle_format"),
        (build(b"{}", length=3), "bundle_truncated"),
        (build(b"{}", length=1000), "bundle_truncated"),
        (build(b"{}", length=0), "bundle_format"),
        (build(b"{}", length=1), "bundle_format"),
        (build(b'{"a":'), "bundle_format"),
        (build(b'{"a":NaN}'), "bundle_format"),
        (build(b'{"a":1e999}'), "bundle_format"),
        (build(b'{"a":' + b"9" * 5000 + b"}"), "bundle_format"),
        (build(b'{"a":1,"a":1}   '), "bundle_format"),
        (build(b'{"a":"\xff\xfe"}    '), "bundle_format"),
        (build(b'{"a":"\\ud800"}  '), "bundle_format"),
        (build(b'{"a": 1}'), "bundle_format"),
        (build(b"{}"), "bundle_format"),
        (build(b"{}     \t"), "bundle_format"),
        (build(b"{}      "), "bundle_manifest_missing"),
        (build(nested(500)), "bundle_format"),
        (build(nested(200_000)), "bundle_format"),
        (build({"__metadata__": []}), "bundle_manifest_missing"),
        (build({"__metadata__": {"format": "pt"}}), "bundle_manifest_missing"),
        (build({"__metadata__": {"darksight": 1}}), "bundle_manifest_missing"),
        (build({"__metadata__": {"darksight": "{}"}}), "bundle_manifest_hash"),
        (safetensors.numpy.save({"a": np.zeros(3)}), "bundle_manifest_missing"),
    ],
    ids=lambda value: value if isinstance(value, str) else repr(value[:24]),
)
def test_crafted_headers(data: bytes, code: str) -> None:
    """Headers that are absurd, cut, not JSON or not ours are refused without harm."""
    assert refused(data).code == code


@pytest.mark.parametrize("position", [0, 1, -1])
def test_a_header_entry_that_lies(position: int) -> None:
    """Offsets that overlap, leave a gap, run backwards or leave the file are refused, for any tensor."""
    header, body = parse(small_bytes())
    name = [key for key in header if key != "__metadata__"][position]
    start, end = header[name]["data_offsets"]
    lies: list[Any] = [
        [start - 8, end - 8],
        [start + 8, end + 8],
        [start, end + 8],
        [start, end - 8],
        [end, start],
        [0, len(body)],
        [-1, 2**64],
        [2**63, 2**63 + end - start],
        [float(start), end],
        [start],
        [],
        None,
        "0",
    ]
    for lie in lies:
        assert refused(build({**header, name: {**header[name], "data_offsets": lie}}, body)).code == "bundle_format"


@pytest.mark.parametrize(
    "entry",
    [
        {"shape": [2**62, 2]},
        {"shape": [2**32, 2**32]},
        {"shape": [-1]},
        {"shape": [True]},
        {"shape": [1.0]},
        {"shape": "ab"},
        {"shape": None},
        {"shape": [1] * 50},
        {"dtype": "F16"},
        {"dtype": "BF16"},
        {"dtype": ["F64"]},
        {"dtype": None},
    ],
    ids=str,
)
def test_a_header_spec_that_lies(entry: Json) -> None:
    """A dtype or shape other than the manifest's is refused, also if it overflows a machine word."""
    header, body = parse(small_bytes())

    error = refused(build({**header, "embed.means": {**header["embed.means"], **entry}}, body))

    assert error.code == "bundle_tensor_spec"
    assert error.details["tensor"] == "embed.means"


@pytest.mark.parametrize("entry", [None, [], {}, {"dtype": "F64", "shape": [1]}, {"extra": 1}], ids=str)
def test_a_header_entry_of_another_kind(entry: Any) -> None:
    """An entry must have its three fields and no other."""
    header, body = parse(small_bytes())
    if isinstance(entry, dict) and "extra" in entry:
        entry = {**header["embed.means"], **entry}

    assert refused(build({**header, "embed.means": entry}, body)).code == "bundle_format"


def test_tensors_swapped_in_the_header() -> None:
    """Two tensors of one kind that trade places are not the ones that were written."""
    header, body = parse(small_bytes())
    first, second = "probe.log_density", "probe.log_kde"
    assert header[first]["shape"] == header[second]["shape"]
    keys = {first: second, second: first}
    swapped = {keys.get(name, name): entry for name, entry in header.items()}

    assert refused(build(swapped, body)).code == "bundle_hash"


def test_a_tensor_is_missing_or_extra() -> None:
    """A tensor that the manifest has and the header not, or the other way round, is named."""
    header, body = parse(small_bytes())
    missing = {name: entry for name, entry in header.items() if name != "kde.values"}
    extra = {**header, "kde.more": {"dtype": "F64", "shape": [0], "data_offsets": [len(body), len(body)]}}

    for changed, code, name in [
        (missing, "bundle_tensor_missing", "kde.values"),
        (extra, "bundle_tensor_extra", "kde.more"),
    ]:
        error = refused(build(changed, body))
        assert (error.code, error.details["tensor"]) == (code, name)
        assert name in str(error)


def test_bytes_after_the_end_or_before() -> None:
    """A file that goes on, or ends early, is refused."""
    assert refused(small_bytes() + b"\x00").code == "bundle_truncated"
    assert refused(small_bytes()[:-1]).code == "bundle_truncated"


def test_an_unreleased_schema_says_to_fit_again() -> None:
    """A file of schema 1, which no release has written, is refused with what to do."""

    def earlier(manifest: Json) -> None:
        manifest["schema_version"] = 1

    error = refused(forge(change_manifest=earlier))

    assert error.code == "bundle_schema"
    assert "Fit the bundle again" in str(error)


def test_a_newer_schema_names_its_writer() -> None:
    """A file of a later schema says which version reads it; later schemas may have other entries."""

    def later(manifest: Json) -> None:
        manifest.clear()
        manifest |= {"schema_version": 7, "created_by": "darksight 9.1.0", "surprise": 1}

    error = refused(forge(change_manifest=later))

    assert error.code == "bundle_schema"
    assert "darksight 9.1.0" in str(error)
    assert error.details["schema"] == 7


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "{", '{"schema_version":2,"schema_version":2}', "[" * 100_000, '{"a":NaN}', '"\\ud800"', "{ }"],
    ids=lambda text: text[:20],
)
def test_a_manifest_that_is_none(text: str) -> None:
    """A manifest that is no JSON object of ours is refused, although its hash is right."""
    assert refused(forge(manifest_text=text)).code == "bundle_manifest"


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 0},
        {"schema_version": "2"},
        {"schema_version": True},
        {"schema_version": 2.0},
        {"tensors": []},
        {"content_sha256": None},
        {"created_by": 1},
        {"created_at": 1},
        {"class_names": "abc"},
        {"class_names": ["a", "b", "a"]},
        {"class_names": ["a", "b", ""]},
        {"class_names": ["a", "b", 3]},
        {"fit_config": None},
        {"fidelity": []},
        {"gate": 1},
        {"certificate": "yes"},
        {"embed": None},
        {"outlier_score": None},
        {"calibration": 1},
        {"splits": []},
    ],
    ids=str,
)
def test_a_manifest_entry_of_the_wrong_kind(change: Json) -> None:
    """Entries that cannot be used are refused, although all hashes are right."""
    assert refused(forge(change_manifest=lambda manifest: manifest.update(change))).code == "bundle_manifest"


@pytest.mark.parametrize(
    "name",
    [
        "created_by",
        "class_names",
        "fit_config",
        "fidelity",
        "gate",
        "certificate",
        "embed",
        "outlier_score",
        "calibration",
        "splits",
    ],
)
def test_a_manifest_entry_is_missing(name: str) -> None:
    """Every entry is needed, and the message names it."""
    error = refused(forge(change_manifest=lambda manifest: manifest.pop(name)))

    assert error.code == "bundle_manifest"
    assert name in str(error)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "name", ["embed.means", "embed.network_inputs", "kde.values", "probe.points", "reference.points"]
)
def test_values_that_are_not_finite(name: str, value: float) -> None:
    """NaN and infinity are refused in every float tensor."""

    def spoil(tensors: dict[str, NDArray[Any]]) -> None:
        tensors[name] = tensors[name].copy()
        tensors[name].flat[-1] = value

    error = refused(forge(spoil))

    assert error.code == "bundle_not_finite"
    assert error.details["tensor"] == name


def tensor(name: str, change: Callable[[NDArray[Any]], NDArray[Any] | None]) -> Callable[[Json], None]:
    """Change one tensor, or remove it."""

    def apply(tensors: Json) -> None:
        new = change(tensors.pop(name))
        if new is not None:
            tensors[name] = np.ascontiguousarray(new)

    return apply


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (tensor("embed.means", lambda a: a[:2]), "bundle_parts"),
        (tensor("embed.means", lambda a: None), "bundle_parts"),
        (tensor("embed.means", lambda a: a.astype(np.float32)), "bundle_tensor_spec"),
        (tensor("embed.scales", lambda a: -a), "bundle_parts"),
        (tensor("embed.network_inputs", lambda a: a.T), "bundle_parts"),
        (tensor("embed.network_inputs", lambda a: a.astype(np.float64)), "bundle_tensor_spec"),
        (tensor("embed.network_second", lambda a: None), "bundle_parts"),
        (tensor("embed.anchors", lambda a: a[:0]), "bundle_parts"),
        (tensor("kde.values", lambda a: a[:1]), "bundle_parts"),
        (tensor("kde.values", lambda a: a.ravel()), "bundle_parts"),
        (tensor("kde.bandwidth", lambda a: -a), "bundle_parts"),
        (tensor("kde.bandwidth", lambda a: a[:0]), "bundle_parts"),
        (tensor("kde.bandwidth", lambda a: np.repeat(a, 2)), "bundle_tensor_spec"),
        (tensor("kde.origin", lambda a: a[:1]), "bundle_parts"),
        (tensor("kde.values", lambda a: a.astype(np.float64)), "bundle_tensor_spec"),
        (tensor("outlier_score.direction_means", lambda a: a[:, :2]), "bundle_parts"),
        (tensor("outlier_score.direction_means", lambda a: None), "bundle_parts"),
        (tensor("outlier_score.log_ratio_means", lambda a: a.astype(np.float64)), "bundle_tensor_spec"),
        (tensor("outlier_score.log_ratio_precisions", lambda a: -a), "bundle_parts"),
        (tensor("outlier_score.log_ratio_axes", lambda a: a[:, :-1]), "bundle_parts"),
        (tensor("outlier_score.class_offsets", lambda a: a[:-1]), "bundle_parts"),
        (tensor("outlier_score.class_offsets", lambda a: a + 1.0), "bundle_parts"),
        (tensor("outlier_score.gen_scores", lambda a: a[::-1]), "bundle_parts"),
        (tensor("outlier_score.direction_log_ranks", lambda a: -a), "bundle_parts"),
        (tensor("calibration.scores", lambda a: a[:-1]), "bundle_parts"),
        (tensor("calibration.scores", lambda a: None), "bundle_parts"),
        (tensor("calibration.scores", lambda a: a.astype(np.float32)), "bundle_tensor_spec"),
        (tensor("reference.points", lambda a: a[:-1]), "bundle_parts"),
        (tensor("reference.points", lambda a: a.astype(np.float64)), "bundle_parts"),
        (tensor("reference.predicted", lambda a: a + 1), "bundle_parts"),
        (tensor("reference.labels", lambda a: a - 5), "bundle_parts"),
        (tensor("reference.labels", lambda a: None), "bundle_parts"),
        (tensor("reference.top_classes", lambda a: a + 1), "bundle_parts"),
        (tensor("reference.top_classes", lambda a: a[:-1]), "bundle_parts"),
        (tensor("reference.top_probs", lambda a: None), "bundle_parts"),
        (tensor("reference.top_probs", lambda a: a + 1), "bundle_parts"),
        (tensor("reference.top_probs", lambda a: a.astype(np.float32)), "bundle_parts"),
        (tensor("probe.inputs", lambda a: a[:, :2]), "bundle_parts"),
        (tensor("probe.inputs", lambda a: a[:, 0]), "bundle_parts"),
        (tensor("probe.inputs", lambda a: a[:0]), "bundle_parts"),
        (tensor("probe.inputs", lambda a: np.repeat(a, 3, axis=0)), "bundle_parts"),
        (tensor("probe.p_value", lambda a: a[:, None]), "bundle_parts"),
        (tensor("split.fit.hashes", lambda a: a[::-1]), "bundle_parts"),
        (tensor("split.fit.counts", lambda a: a[:-1]), "bundle_parts"),
        (tensor("split.test.hashes", lambda a: None), "bundle_parts"),
        (lambda tensors: tensors.update({"embed.more": np.zeros(1)}), "bundle_tensor_extra"),
        (lambda tensors: tensors.update({"kde.more": np.zeros(1)}), "bundle_tensor_extra"),
        (lambda tensors: tensors.update({"other": np.zeros(1)}), "bundle_tensor_extra"),
    ],
)
def test_parts_that_cannot_work(change: Callable[[Json], None], code: str) -> None:
    """Tensors that their part cannot use are refused, although all hashes are right."""
    assert refused(forge(change)).code == code


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("class_names",), ["a", "b"]),
        (("embed", "n_inputs"), 4),
        (("embed", "n_inputs"), "x"),
        (("embed", "dof"), 0.0),
        (("embed", "dof"), None),
        (("embed", "bound"), -1.0),
        (("embed", "columns"), [0, 0, 1]),
        (("embed", "columns"), 5),
        (("embed", "temperature"), []),
        (("outlier_score", "gen_slope"), -1.0),
        (("outlier_score", "direction_slope"), None),
        (("embed", "network_above"), -1.0),
        (("embed", "network_above"), None),
        (("calibration", "n"), 3),
        (("splits", "fit"), None),
        (("splits", "fit", "n"), 0),
        (("splits", "calibrate", "n"), 37),
        (("splits", "test", "n_unique"), -1),
    ],
    ids=str,
)
def test_settings_that_cannot_work(path: tuple[str, ...], value: object) -> None:
    """Settings that their part cannot use, and numbers of classes that differ, are refused."""

    def change(manifest: Json) -> None:
        for name in path[:-1]:
            manifest = manifest[name]
        manifest[path[-1]] = value

    assert refused(forge(change_manifest=change)).code in ("bundle_manifest", "bundle_parts")


@pytest.mark.parametrize("name", ["points", "log_density", "log_kde", "outlier_score", "p_value"])
def test_probes_must_give_their_scores(name: str) -> None:
    """A probe whose score is off by more than the tolerance is refused; the message names score and row."""

    def shift(size: float) -> bytes:
        def change(array: NDArray[Any]) -> NDArray[Any]:
            array = array.copy()
            array[5] += size * (1.0 + np.abs(array[5]))
            return array

        return forge(tensor(f"probe.{name}", change))

    error = refused(shift(3e-2 if name == "p_value" else 3e-5))

    assert (error.code, error.details["score"], error.details["row"]) == ("bundle_probe", name, 5)
    assert name in str(error)
    decode_bundle(shift(1e-13 if name == "p_value" else 5e-6))
    decode_bundle(shift(1.0), verify=False)


def test_a_probe_may_pass_a_calibration_score() -> None:
    """A score that differs in its last digits may have the next rank, and no more than that."""
    bundle = small()
    rank = bundle.calibration.scores.copy()
    score = bundle.probes.outlier_score[3]
    rank[:2] = score + 1e-6 * max(abs(score), 1.0) - np.array([1e-7, -1e-7])
    near = Calibration(rank)
    probes = bundle.probes.ranked(near)
    other = probes.p_value.copy()
    other[3] += 1.0 / (len(near) + 1)

    encode_bundle(replace(bundle, calibration=near, probes=replace(probes, p_value=other)))
    other[3] += 3.0 / (len(near) + 1)
    with raises_code("bundle_probe"):
        encode_bundle(replace(bundle, calibration=near, probes=replace(probes, p_value=other)))


def test_probes_off_the_simplex_are_refused() -> None:
    """A probe that cannot be scored proves nothing."""
    assert refused(forge(tensor("probe.inputs", lambda a: a * 2))).code == "bundle_probe"


def test_another_map_does_not_pass_the_probes() -> None:
    """Parts of another fit, with all hashes right, do not give the scores of the probes."""
    other = make_bundle(seed=1)

    with raises_code("bundle_probe"):
        encode_bundle(replace(small(), kde=other.kde))
    with raises_code("bundle_probe"):
        encode_bundle(replace(small(), embedder=make_embedder(log_prior=np.log([0.5, 0.3, 0.2]))))


def test_calibration_rows_that_are_fit_rows() -> None:
    """A bundle that was calibrated on rows of its fit is refused, and can still be looked at."""
    bundle = make_bundle(rows=400)
    fit = bundle.splits.fit
    chosen = slice(0, len(bundle.calibration))
    part = RowSketch(chosen.stop, chosen.stop, chosen.stop, "0" * 64, fit.hashes[chosen], fit.counts[chosen])
    leaky = replace(bundle, splits=replace(bundle.splits, calibrate=part))

    with raises_code("bundle_overlap", match="calibration rows are fit rows") as caught:
        encode_bundle(leaky)

    assert caught.value.details["overlap"] == 1.0


def test_the_same_rows_for_fit_and_calibration() -> None:
    """The plainest mistake, one file for both, is refused."""
    bundle = make_bundle(shares=(0.5, 0.5, 0.0))
    same = replace(bundle, splits=SplitSketches(bundle.splits.fit, bundle.splits.fit, bundle.splits.test))

    with raises_code("bundle_overlap"):
        encode_bundle(same)


def test_no_flipped_byte_passes() -> None:
    """Any bit flipped at 2,000 random places, and every byte of the first 300, is refused as a BundleError."""
    rng = random.Random(2018)
    data = small_bytes()
    places = [*range(300), *(rng.randrange(len(data)) for _ in range(2_000))]
    codes = set()
    for place in places:
        changed = bytearray(data)
        changed[place] ^= rng.choice([1 << rng.randrange(8), rng.randrange(1, 256)])
        codes.add(refused(bytes(changed)).code)

    assert {"bundle_format", "bundle_manifest_hash", "bundle_hash"} <= codes


def test_no_flipped_byte_of_the_header_passes() -> None:
    """Each byte of the header's own entries, outside the manifest, is covered too."""
    rng = random.Random(7)
    data = small_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    start = data.index(b'"darksight_sha256"')
    for place in range(start, end):
        changed = bytearray(data)
        changed[place] ^= 1 << rng.randrange(8)
        refused(bytes(changed))


def test_no_damaged_range_passes() -> None:
    """Files that are cut, zeroed, repeated or shuffled in part are refused as a BundleError."""
    rng = random.Random(2018)
    data = small_bytes()
    for _ in range(200):
        refused(data[: rng.randrange(len(data))])
    for _ in range(200):
        start = rng.randrange(len(data))
        size = rng.choice([1, 8, 64, 512, 4096])
        zeroed = data[:start] + bytes(len(data[start : start + size])) + data[start + size :]
        doubled = data[:start] + data[start : start + size] * 2 + data[start + size :]
        dropped = data[:start] + data[start + size :]
        for changed in (zeroed, doubled, dropped):
            if changed != data:
                refused(changed)


def test_no_random_bytes_pass() -> None:
    """Noise behind a plausible length is refused as a BundleError."""
    rng = random.Random(1)
    for _ in range(300):
        noise = rng.randbytes(rng.randrange(200))
        refused(noise)
        refused(build(b"{" + noise, b""))


def test_a_file_is_not_overwritten(tmp_path: Path) -> None:
    """An existing file stays unless one says otherwise."""
    path = tmp_path / "map.safetensors"
    path.write_text("mine")

    with raises_code("bundle_exists", match=str(path)):
        write_bundle(path, small())
    assert path.read_text() == "mine"

    write_bundle(path, small(), overwrite=True)
    assert path.read_bytes() == small_bytes()
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
@pytest.mark.parametrize(
    "failure", [OSError(28, "No space left on device"), KeyboardInterrupt(), MemoryError()], ids=repr
)
def test_a_failed_write_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, failure: BaseException
) -> None:
    """Whatever happens in the middle, the old file is whole and no other is left."""
    path = tmp_path / "map.safetensors"
    path.write_text("old")

    def fail(*arguments: object) -> None:
        raise failure

    monkeypatch.setattr(os, failing, fail)
    is_refused = isinstance(failure, OSError)
    with raises_code("bundle_write") if is_refused else pytest.raises(type(failure)):
        write_bundle(path, small(), overwrite=True)

    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == [path.name]


def test_what_cannot_be_read_is_not_written(tmp_path: Path) -> None:
    """A bundle that would be refused never becomes a file."""
    path = tmp_path / "map.safetensors"
    bad = [
        replace(small(), manifest={**small().manifest, "class_names": ["a", "b"]}),
        replace(small(), manifest={**small().manifest, "fidelity": {"kl_sym": float("nan")}}),
        replace(small(), manifest={**small().manifest, "fidelity": {"kl_sym": object()}}),
        replace(small(), probes=replace(small().probes, log_kde=small().probes.log_kde + 1.0)),
        replace(small(), probes=replace(small().probes, log_kde=small().probes.log_kde * np.nan)),
    ]

    for bundle in bad:
        with pytest.raises(BundleError):
            write_bundle(path, bundle)
    assert os.listdir(tmp_path) == []


def test_writing_where_one_cannot(tmp_path: Path) -> None:
    """A folder that is missing, or a file in its place, is named."""
    (tmp_path / "file").write_text("")

    for name in ("none/map.safetensors", "file/map.safetensors", "a\0b", "x" * 300):
        with raises_code("bundle_write"):
            write_bundle(tmp_path / name, small())
    with raises_code("bundle_write"):
        write_bundle(tmp_path, small(), overwrite=True)


def test_a_new_file_has_the_usual_permissions(tmp_path: Path) -> None:
    """Permissions follow the umask, as for any file; a server of another user can read it."""
    path = tmp_path / "map.safetensors"
    before = os.umask(0o022)
    try:
        write_bundle(path, small())
    finally:
        os.umask(before)

    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_tensors_of_a_dtype_that_a_bundle_cannot_hold() -> None:
    """Text, objects and complex numbers do not go into a file."""
    for array in (np.array(["a"]), np.array([None]), np.zeros(2, dtype=complex)):
        with raises_code("bundle_tensor_spec"):
            container.encode({"a": array}, {})


def test_the_container_holds_any_tensors() -> None:
    """Scalars, empty arrays and no arrays at all come back as they were."""
    for tensors in ({}, {"a": np.array(1.5), "b": np.zeros((0, 3), dtype=np.int32), "c": np.arange(7, dtype=np.uint8)}):
        found = container.decode(container.encode(tensors, {"x": 1}))

        assert found.tensors.keys() == tensors.keys()
        assert found.manifest["x"] == 1
        for name, array in tensors.items():
            assert (found.tensors[name].dtype, found.tensors[name].shape) == (array.dtype, array.shape)
            assert np.array_equal(found.tensors[name], array)


def test_a_header_too_large_is_not_written() -> None:
    """What the cap would refuse is refused at once."""
    with raises_code("bundle_size"):
        container.encode({}, {"note": "x" * MAX_HEADER})


@pytest.mark.parametrize(
    "make",
    [
        lambda: Reference.of(np.zeros((0, 2)), np.zeros((0, 3))),
        lambda: Reference.of(np.zeros((3, 3)), np.eye(3)),
        lambda: Reference.of(np.zeros((3, 2)), np.eye(2)),
        lambda: Reference.of(np.zeros((3, 2)), np.zeros((3, 40_000))),
        lambda: Reference.of(np.zeros((3, 2)), np.eye(3), [-2, 0, 0]),
        lambda: Reference.of(np.zeros((3, 2)), 2.0 * np.eye(3)),
        lambda: Probes.of(np.zeros((0, 3)), np.zeros((0, 2)), [], [], []),
        lambda: Probes.of(np.zeros((65, 3)), np.zeros((65, 2)), *np.zeros((3, 65))),
        lambda: Probes.of(np.zeros((5, 3)), np.zeros((5, 2)), np.zeros(4), *np.zeros((2, 5))),
    ],
)
def test_parts_of_the_wrong_shape(make: Callable[[], object]) -> None:
    """References and probes are checked when they are made."""
    with pytest.raises(ConfigError):
        make()


def test_references_are_drawn_by_seed() -> None:
    """Too many references are thinned at random, the same way each time, with their classes."""
    points = np.arange(50_000, dtype=np.float64)[:, None] * np.ones(2)
    classes = np.arange(50_000) % 7

    probs = np.eye(7)[classes]
    first, again = Reference.of(points, probs, classes), Reference.of(points, probs, classes)

    assert np.array_equal(first.points, again.points)
    assert np.array_equal(first.points[:, 0].astype(int) % 7, first.predicted)
    assert np.array_equal(first.predicted, first.labels)
    assert not np.array_equal(first.points, Reference.of(points, probs, seed=1).points)
    assert (Reference.of(points, probs).labels == -1).all()


def test_a_reference_keeps_the_most_probable_classes() -> None:
    """Ten of them at most, the first one first."""
    probs = np.random.default_rng(0).dirichlet(np.full(30, 0.2), 50)
    points, predicted = np.zeros((50, 2)), probs.argmax(axis=1)

    kept = Reference.of(points, probs)

    assert np.array_equal(kept.predicted, predicted)
    assert kept.top_classes.shape == kept.top_probs.shape == (50, 10)
    assert np.array_equal(kept.top_classes[:, 0], predicted)
    assert np.allclose(kept.top_probs, -np.sort(-probs, axis=1)[:, :10], atol=1e-3)


def describe_facts(bundle: Bundle) -> str:
    """All facts of a bundle, one for each line."""
    return "\n".join([bundle.title, *(f"{name} {text}" for name, text in bundle.facts())])


def test_description_tells_what_a_bundle_can_do(tmp_path: Path) -> None:
    """A person reads classes, rows, how good the map is, p-values, rules with their promises, and warnings."""
    path = tmp_path / "map.safetensors"
    bundle = make_bundle(rows=400)
    served = {"kl_sym": 0.3, "acc_teacher": 0.995, "total_variation": 0.012, "kl_sym_of_zeros": 0.29}
    manifest = {**bundle.manifest, "fidelity": {"served": served}, "warnings": ["hard probabilities: all of them"]}
    gate = Gate(outlier=cutoff(120, 0.05), reject_score="msp", threshold=2.5)
    certificate = {
        "outlier": {**CERTIFICATE["outlier"], "promise": "at most 0.05 of usual rows are outliers"},
        "reject": {
            **CERTIFICATE["outlier"],
            "kind": "accuracy",
            "promise": "at least 0.99 of accepted rows are right",
            "feasible": False,
        },
    }
    write_bundle(path, replace(bundle, manifest=manifest).with_gate(gate, certificate))

    text = describe_facts(read_bundle(path))

    for words in (
        "3: class 0, class 1, class 2",
        "240 to fit, 120 to calibrate, 40 to test",
        "good: 1.2% of the probability is in the wrong place on average",
        "KL_sym 0.3 on rows that no step has fitted, 0.29 of it from probabilities of zero",
        "it predicts the classifier's class for 99.50% of them",
        "ranks among 120 calibration rows; the smallest is 0.0083",
        "OUTLIER if p-value <= 0.0495868, for alpha 0.05",
        "LOW_CONFIDENCE unless msp >= 0.924142",
        "at most 0.05 of usual rows are outliers\n",
        "at least 0.99 of accepted rows are right: NOT FEASIBLE",
        "hard probabilities: all of them",
        str(path),
    ):
        assert words in text
    assert "fit_config" not in text


def test_description_of_a_bundle_without_gate_or_calibration() -> None:
    """It says what happens then."""
    text = describe_facts(make_bundle(classes=20, rows=60, shares=(1.0, 0.0, 0.0)))

    assert "none: the service flags p-values up to 0.01 and certifies nothing; see darksight calibrate" in text
    assert "all 1: not calibrated" in text
    assert "(8 more)" in text


def test_thresholds_in_the_difference_are_exact() -> None:
    """A score just below the shown threshold has p <= alpha, the threshold itself has not."""
    bundle = make_bundle(rows=1_000)
    other = replace(bundle, calibration=Calibration(np.empty(0)))
    line = next(line for line in diff(bundle, other) if line.startswith("threshold at p <= 0.05"))
    scores = bundle.calibration.scores
    threshold = scores[np.searchsorted(scores, float(line.split()[-3]) - 5e-5) :][0]

    assert bundle.calibration.p_value(np.array([threshold - 1e-4]))[0] <= 0.05
    assert bundle.calibration.p_value(np.array([threshold]))[0] > 0.05


def test_equal_bundles_do_not_differ() -> None:
    """A bundle and its copy have no difference, with a version or without."""
    read = decode_bundle(small_bytes())

    assert diff(read, decode_bundle(small_bytes())) == []
    assert diff(small(), make_bundle()) == []


def test_differences_are_listed() -> None:
    """Settings, rows, fidelity, centres, bandwidth and thresholds that differ are named with both values."""
    a = decode_bundle(encode_bundle(make_bundle(rows=400)))
    other = make_bundle(rows=700, seed=3, log_prior=np.log([0.5, 0.3, 0.2]))
    gate = Gate(outlier=cutoff(len(other.calibration), 0.01))
    turned = replace(other, manifest={**other.manifest, "fidelity": {"kl_sym": 0.04}}).with_gate(gate)
    b = decode_bundle(encode_bundle(turned))

    lines = diff(a, b)

    assert "fit_config.seed: 0 -> 3" in lines
    assert "fidelity.kl_sym: 0.05 -> 0.04" in lines
    assert "fidelity.heldout.kl_sym: 0.0625 -> none" in lines
    assert "gate.outlier.alpha: none -> 0.01" in lines
    assert "rows.test: 40 -> 70" in lines
    assert any(line.startswith("threshold at p <= 0.01: ") for line in lines)
    assert not any(line.startswith("class_names") for line in lines)


def test_centre_movement_is_seen_through_a_turn() -> None:
    """A map that was only turned and shifted moved, but not after the best turn."""
    bundle = small()
    student = bundle.embedder.student
    angle = 0.7
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    moved = replace(student, means=student.means @ turn + 1.0)
    other = replace(bundle, embedder=replace(bundle.embedder, student=moved))

    line = next(line for line in diff(bundle, other) if line.startswith("centres"))
    after = line.split("at most, by ")[1].split(" after")[0].split(" and ")

    assert "radius 6" in line
    assert max(float(number) for number in after) < 1e-9


def test_class_names_that_differ_are_listed() -> None:
    """Bundles of other classes say so, and their centres are not compared."""
    a, b = small(), make_bundle(classes=4)

    lines = diff(a, b)

    assert "class_names: class 0, class 1, class 2 -> class 0, class 1, class 2, class 3" in lines
    assert not any(line.startswith("centres") for line in lines)
