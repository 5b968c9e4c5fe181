"""Hostile files: bundles with valid hashes around any manifest, and predictions files of all formats."""

from __future__ import annotations

import csv
import io
import random
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from darksight_core.bundle import decode_bundle
from darksight_core.errors import BundleError, DarkSightError
from darksight_core.predictions import iter_predictions, read_predictions
from tests.support.bundles import forged

__all__ = ["hostile_bundles", "hostile_predictions", "use_bundle", "use_predictions"]

_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 1e-300, -0.0, 0.5, 1.5, 1e15, 1e300, -1e300, 101, 10**6, 10**12, 2**31, 2**53,
    2**63, 2**64, 10**40, "", "x", "-inf", "nan", "1", "\u00e9\n", "x" * 200_000, [], [[]], {}, {"a": {}}, [0] * 50_000,
    [None], [1, 2], {"name": "a", "polygon": [[0, 0], [1, 0], [1, 1]]}, [{"name": "a", "polygon": [[1, 2]] * 9_000}],
)  # fmt: skip
_WRITTEN = ("tensors", "content_sha256", "schema_version")


def hostile_bundles(data: bytes, count: int, seed: int) -> Iterator[bytes]:
    """Files of a bundle whose manifests have one to four changed entries, and all hashes right."""
    rng = random.Random(seed)
    made = 0
    while made < count:
        with suppress(BundleError):
            yield forged(data, lambda _, manifest: _spoil(rng, manifest))
            made += 1


def _spoil(rng: random.Random, manifest: dict[str, Any]) -> None:
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        found: Any = manifest
        while True:
            keys = list(found) if isinstance(found, dict) else list(range(len(found)))
            keys = [key for key in keys if key not in _WRITTEN]
            if not keys:
                break
            key = rng.choice(keys)
            if isinstance(found[key], dict | list) and found[key] and rng.random() < 0.8:
                found = found[key]
                continue
            _change(rng, found, key)
            break


def _change(rng: random.Random, found: Any, key: Any) -> None:
    kind, value = rng.randrange(6), found[key]
    if kind == 0:
        del found[key]
    elif kind == 1 and isinstance(value, int | float) and not isinstance(value, bool):
        found[key] = value + rng.choice((-1, 1, 1e-9, 1e-3, 1e3))
    elif kind == 2 and isinstance(found, dict):
        found[f"{key}_"] = rng.choice(_VALUES)
    else:
        found[key] = rng.choice(_VALUES)


def use_bundle(data: bytes) -> bool:
    """Whether a bundle can be loaded; whatever else than a refusal it raises is a defect."""
    from darksight_service.control.registry import Version

    try:
        bundle = decode_bundle(data)
    except BundleError:
        return False
    bundle.facts()
    Version(bundle).get_ready()
    return True


def hostile_predictions(folder: Path, count: int, seed: int) -> Iterator[Path]:
    """Predictions files of any shape, dtype and text, half of them with damaged bytes."""
    rng = random.Random(seed)
    for number in range(count):
        suffix = rng.choice((".npy", ".npz", ".csv", ".parquet"))
        path = folder / f"{number % 16}{suffix}"
        data = {".npy": _npy, ".npz": _npz, ".csv": _csv, ".parquet": _parquet}[suffix](rng)
        path.write_bytes(_damaged(rng, data) if rng.random() < 0.5 else data)
        yield path


def use_predictions(path: Path) -> bool:
    """Whether a file can be read, whole and in chunks; whatever else than a refusal it raises is a defect."""
    try:
        rows = len(read_predictions(path))
        return sum(map(len, iter_predictions(path, chunk_rows=7))) == rows
    except DarkSightError:
        return False


def _npy(rng: random.Random) -> bytes:
    """A header of any kind, with the bytes it needs or others."""
    if rng.random() < 0.4:
        return _saved(_array(rng))
    shape = tuple(
        rng.choice((0, 1, 2, 3, 7, 2**20, 2**31, 2**40, 2**62, -1)) for _ in range(rng.choice((0, 1, 2, 2, 2, 3)))
    )
    dtype = rng.choice(("<f4", "<f8", ">f4", "<i8", "|S0", "<U1024", "|b1", "<c16", "|O", "<M8[s]", "|V3"))
    file = io.BytesIO()
    header = {"descr": dtype, "fortran_order": rng.random() < 0.3, "shape": shape}
    np.lib.format.write_array_header_2_0(file, header)
    return file.getvalue() + rng.randbytes(rng.choice((0, 8, 24, 96)))


def _array(rng: random.Random) -> Any:
    draw = np.random.default_rng(rng.randrange(2**32))
    rows, classes = rng.choice((0, 1, 5, 40)), rng.choice((0, 1, 2, 3, 10))
    probs = draw.dirichlet(np.ones(max(classes, 1)), rows)[:, :classes]
    kind = rng.randrange(6)
    if kind == 0 and probs.size:
        probs.flat[rng.randrange(probs.size)] = rng.choice((np.nan, np.inf, -1.0, 2.0, 1e300))
    if kind == 1:
        probs = np.asfortranarray(probs)
    with np.errstate(all="ignore"):
        return probs.astype(rng.choice((np.float64, np.float32, np.float16, np.int8)))


def _saved(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def _text(rng: random.Random) -> str:
    return rng.choice(("", "a", "0", "1", "-1", "2.0", "nan", "\ud800", "a\0b", "\u00e9", "=1+1", "x" * 300, "9" * 400))


def _npz(rng: random.Random) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name in ("probs", "logits", "labels", "ids", "class_names", "other"):
            if rng.random() < (0.9 if name == "probs" else 0.3):
                texts = np.array([_text(rng) for _ in range(rng.choice((0, 1, 3, 5, 40)))] or [""])
                data = _npy(rng) if name in ("probs", "logits") or rng.random() < 0.3 else _saved(texts)
                archive.writestr(f"{name}.npy", data)
    return file.getvalue()


def _csv(rng: random.Random) -> bytes:
    file = io.StringIO()
    writer = csv.writer(file)
    columns = [
        rng.choice(("prob_", "prob_", "logit_", "label", "id", "")) + _text(rng)[:20] for _ in range(rng.randrange(6))
    ]
    writer.writerow([*columns, "prob_a", "prob_b"])
    for _ in range(rng.choice((0, 1, 5, 40))):
        cells = [_text(rng) for _ in columns]
        writer.writerow([*cells, "0.25", "0.75"][: rng.choice((len(cells) + 2,) * 9 + (1,))])
    return file.getvalue().encode("utf-8", "surrogatepass")


def _parquet(rng: random.Random) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = rng.choice((0, 1, 5, 40))
    columns: dict[str, Any] = {"prob_a": [0.25] * rows, "prob_b": [0.75] * rows}
    if rng.random() < 0.5:
        columns["prob_c"] = rng.choice(([None] * rows, ["x"] * rows, [True] * rows, [[1.0]] * rows, [b"\xff"] * rows))
    if rng.random() < 0.5:
        columns["label"] = rng.choice(([0] * rows, ["a"] * rows, [None] * rows, [1.5] * rows, [b"\xff"] * rows))
    if rng.random() < 0.5:
        columns["id"] = rng.choice(([str(row) for row in range(rows)], [b"\xff"] * rows, [{"a": 1}] * rows))
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def _damaged(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        place = rng.randrange(len(changed)) if changed else 0
        match rng.randrange(4):
            case 0 if changed:
                changed[place] ^= 1 << rng.randrange(8)
            case 1:
                del changed[place : place + rng.choice((1, 4, 4096))]
            case 2:
                changed[place:place] = rng.randbytes(rng.randrange(1, 9))
            case _:
                changed[place : place + 4] = rng.choice((b"\xff\xff\xff\x7f", b"\xff" * 4, b"\0" * 4, b"9999"))
    return bytes(changed)
