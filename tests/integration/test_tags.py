"""Tags and traces, from a call to the stored point."""

from __future__ import annotations

import asyncio
import csv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from darksight_client import AsyncClient, Batcher, Client, InvalidRequest
from darksight_client.stubs.darksight.v1 import monitor_pb2
from darksight_service.cli import main
from darksight_service.errors import StoreUnavailableError
from darksight_service.store.engine import reading, writing
from darksight_service.store.points import PointFilter
from darksight_service.store.store import Store
from darksight_service.store.tables import BINS, bundle, rollup, rollup_tag, tag, tag_bin
from darksight_service.store.write.retention import Limits
from darksight_service.store.write.tags import MAX_KEYS
from sqlalchemy import Connection, Engine, func, select, text

from darksight_core.bundle import write_bundle
from darksight_core.rows.schema import Decision, Reason
from tests.integration.conftest import NOW_MS
from tests.support.builders import make_probs
from tests.support.bundles import make_bundle
from tests.support.points import VERSION, make_points, rows_of
from tests.support.servers import Server, running_server, wait_until

MINUTE_MS = 60_000
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
HEADER = f"00-{TRACE}-00f067aa0ba902b7-01"
LYON, PARIS = {"camera": "7", "site": "Lyon"}, {"camera": "8", "site": "Paris"}
HOSTILE = {
    "note": "<script>alert(1)</script>",
    "quote": "'\"; DROP TABLE point; --",
    "formula": "=HYPERLINK(1)",
    "bidi": "a\u202egnp.b",
    "reference": "javascript:alert(1)",
}


def test_tags_and_traces_come_back(store: Store) -> None:
    """Of rows with and without them, with names of several lengths, and of repeated batches once."""
    trace = bytes.fromhex(TRACE)
    batches = [
        make_points(3, seed=1, tags=[LYON, {}, PARIS | {"reference": "a.png"}], trace=trace),
        make_points(2, seed=2, tags=HOSTILE, names=("x", "longer"), ms=NOW_MS - 1),
        make_points(2, seed=3, ms=NOW_MS - 2),
    ]

    assert store.insert([*batches, batches[0]]).points == 7
    assert store.insert(batches).points == 0

    found = rows_of(store.list_points(PointFilter("digits")).points)
    assert {each.id: each.tags for each in found} == {
        each.id: each.tags for batch in batches for each in rows_of(batch)
    }
    assert [each.trace_id for each in found] == [TRACE] * 3 + [""] * 4


def test_points_are_found_by_tags(store: Store) -> None:
    """By one tag or several, with other filters, and over minutes without them; nothing has an unknown one."""
    for minute in range(0, 300, 60):
        tags = [LYON if row % 3 else PARIS | {"shift": "night"} for row in range(30)]
        store.insert([make_points(30, ms=NOW_MS - minute * MINUTE_MS, seed=minute, tags=tags if minute else ())])
        store.insert([make_points(30, ms=NOW_MS - minute * MINUTE_MS + 1, seed=minute, is_shadow=True, tags=LYON)])

    def listed(**options: Any) -> list[Any]:
        return rows_of(store.list_points(PointFilter("digits", **options), page_size=1000).points)

    assert len(listed()) == 150
    assert len(listed(tags=(("camera", "7"),))) == 80
    night = listed(tags=(("camera", "8"), ("shift", "night")))
    assert [each.tags for each in night] == [PARIS | {"shift": "night"}] * 40
    assert listed(tags=(("camera", "7"), ("shift", "night"))) == []
    assert listed(tags=(("camera", "9"),)) == []
    rejected = listed(tags=(("site", "Lyon"),), decisions=(int(Decision.REJECT),))
    assert rejected
    assert len(rejected) == sum(each.decision == Decision.REJECT for each in listed(tags=(("site", "Lyon"),)))
    assert len(listed(tags=(("site", "Lyon"),), is_shadow=True)) == 150
    wanted = PointFilter("digits", tags=(("camera", "8"),))
    assert store.count_points(wanted) == 40
    assert 0 < len(store.sample_map_points(wanted, limit=1000)) <= 40
    assert store.count_points(PointFilter("digits", tags=(("camera", "9"),))) == 0


def test_a_tag_is_not_found_across_two_others(store: Store) -> None:
    """The bytes of two numbers may contain those of a third."""
    model = store._names.model_id("digits")
    with writing(store._engine) as connection:
        for number in (0x0100, 0x010000, 0x0001_0001):
            connection.execute(tag.insert().values(id=number, model_id=model, key=f"k{number}", value="x"))
    store.insert([make_points(2, tags={f"k{0x0100}": "x", f"k{0x010000}": "x"})])

    assert len(store.list_points(PointFilter("digits", tags=((f"k{0x010001}", "x"),))).points) == 0
    assert len(store.list_points(PointFilter("digits", tags=((f"k{0x010000}", "x"),))).points) == 2


def test_points_are_counted_by_tag(store: Store) -> None:
    """In the transaction that adds them, by minute: decisions and p-values add up to those of the points."""
    tags = [LYON if row % 2 else PARIS for row in range(200)]
    batches = [make_points(200, ms=NOW_MS + part * MINUTE_MS, seed=part, tags=tags) for part in range(2)]
    for batch in batches:
        store.insert([batch])
    store.insert(batches)

    with reading(store._engine) as connection:
        joined = rollup_tag.join(tag, tag.c.id == rollup_tag.c.tag_id)
        found = connection.execute(
            select(rollup_tag, tag.c.key, tag.c.value).select_from(joined).order_by(rollup_tag.c.minute)
        ).all()
    assert len(found) == 8
    for batch, minute in zip(batches, (NOW_MS // MINUTE_MS, NOW_MS // MINUTE_MS + 1), strict=True):
        (row,) = [each for each in found if (each.minute, each.key, each.value) == (minute, "site", "Lyon")]
        part = batch.take(np.arange(200) % 2 == 1)
        expected = np.ceil(part.p_value[~np.isnan(part.p_value)] * BINS - 1e-6).astype(int) - 1
        assert (row.points, row.accepted) == (100, int(part.accepted.sum()))
        assert row.outliers == int((part.reason == Reason.OUTLIER).sum())
        assert row.scored == int(np.isfinite(part.log_density).sum())
        bins = [getattr(row, tag_bin(number)) for number in range(BINS)]
        assert bins == np.bincount(expected, minlength=BINS).tolist()


def test_values_and_keys_are_bounded(url: str, open_store: Callable[..., Store]) -> None:
    """Further ones are stored as `_other` and counted, by whichever process they come; known values stay."""
    first, second = (open_store(url, max_tag_values=5) for _ in range(2))
    ids = [{"user": f"u{number}"} for number in range(8)]
    first.insert([make_points(8, tags=ids)])
    second.insert([make_points(8, seed=1, tags=ids[::-1], ms=NOW_MS + 1)])
    second.insert([make_points(1, seed=2, tags={"user": "_other"}, ms=NOW_MS + 2)])
    keys = [{f"k{number}": "x"} for number in range(MAX_KEYS + 6)]
    first.insert([make_points(len(keys), seed=3, tags=keys, ms=NOW_MS + 3)])

    found = [each.tags for each in rows_of(second.list_points(PointFilter("digits"), page_size=1000).points)]

    assert sorted(each["user"] for each in found if "user" in each) == sorted(
        ["_other"] * 7 + 2 * [f"u{number}" for number in range(5)]
    )
    assert found.count({"_other": "_other"}) == 7
    assert first.folded_tags() + second.folded_tags() == 3 + 3 + 7


def test_keys_with_the_value_other_alone_are_bounded_too(store: Store) -> None:
    """A caller may send the value that stands for others."""
    keys = [{f"k{number}": "_other"} for number in range(MAX_KEYS + 6)]
    store.insert([make_points(len(keys), tags=keys)])
    store.insert([make_points(1, seed=1, tags={"late": "_other"}, ms=NOW_MS + 1)])

    found = [each.tags for each in rows_of(store.list_points(PointFilter("digits"), page_size=1000).points)]

    assert found.count({"_other": "_other"}) == 7
    assert store.folded_tags() == 7


def test_tags_stored_as_other_are_counted_once(
    url: str, open_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that was not committed counts nothing, and neither do points that are sent again."""
    store = open_store(url, max_tag_values=2)
    points = make_points(5, tags=[{"user": f"u{number}"} for number in range(5)])
    with monkeypatch.context() as patch:
        patch.setattr("darksight_service.store.write.insert.writing", _uncommitted)
        with pytest.raises(StoreUnavailableError):
            store.insert([points])
    counts = [store.folded_tags()]
    for _ in range(2):
        store.insert([points])
        counts.append(store.folded_tags())

    assert counts == [0, 3, 3]


@contextmanager
def _uncommitted(engine: Engine) -> Iterator[Connection]:
    """A transaction whose commit fails."""
    with writing(engine) as connection:
        yield connection
        raise StoreUnavailableError("the connection is lost")


def test_numbers_of_another_database_are_not_used(store: Store) -> None:
    """A backup is restored while the numbers of bundles and tags are cached, and no connection tells."""
    store.insert([make_points(3, model="other", tags=PARIS), make_points(3, seed=1, tags=LYON)])
    with writing(store._engine) as connection:
        # As if the last inserts before the restore are not in it, and others took their numbers.
        connection.execute(tag.update().where(tag.c.value == "7").values(value="71"))
        connection.execute(tag.delete().where(tag.c.value == "Lyon"))
    late = make_points(3, seed=2, tags=LYON, ms=NOW_MS + 1)

    with pytest.raises(StoreUnavailableError, match="other numbers"):
        store.insert([late])
    assert store.insert([late]).points == 3

    assert [each.tags for each in rows_of(store.list_points(PointFilter("digits")).points)][:3] == [LYON] * 3
    with writing(store._engine) as connection:
        connection.execute(bundle.update().where(bundle.c.id == 2).values(version="f" * 64))
    late = make_points(3, seed=3, ms=NOW_MS + 2)
    with pytest.raises(StoreUnavailableError, match="other numbers"):
        store.insert([late])
    assert store.insert([late]).points == 3
    assert len(store.list_points(PointFilter("digits", VERSION)).points) == 3


def test_counts_by_tag_are_deleted_with_their_points(store: Store) -> None:
    """Nothing reads older ones, and there may be as many as points; those of the last day stay."""
    day = 86_400_000
    hours = (72, 12, 0)
    store.insert([make_points(5, ms=NOW_MS - each * 3_600_000, seed=each, tags=LYON) for each in hours])

    store.prune(Limits(max_age_ms=day // 4), now_ms=NOW_MS + 60_000)

    with reading(store._engine) as connection:
        minutes = set(connection.scalars(select(rollup_tag.c.minute)))
        assert connection.scalar(select(func.count(rollup.c.minute.distinct()))) == 3
    assert minutes == {(NOW_MS - each * 3_600_000) // MINUTE_MS for each in hours[1:]}


def test_counts_by_tag_have_the_age_limit_of_counts(store: Store) -> None:
    """They are deleted with the other counts, and not before their points."""
    day = 86_400_000
    store.insert([make_points(5, ms=NOW_MS - 3 * day, tags=LYON), make_points(5, seed=1, tags=LYON)])
    limits = Limits(max_age_ms=day, max_rollup_age_ms=day)

    assert store.prune(limits, dry_run=True).points == 5
    store.prune(limits)

    with reading(store._engine) as connection:
        assert connection.scalar(select(func.count()).select_from(rollup_tag)) == 2


def test_four_tags_take_at_most_24_bytes_of_a_row(postgres_url: str, open_store: Callable[..., Store]) -> None:
    """On PostgreSQL, where a row takes a multiple of 8 bytes."""
    store, rows = open_store(postgres_url), 400
    tags = [{"camera": str(row % 40), "site": "Lyon", "line": str(row % 7), "shift": "night"} for row in range(rows)]
    store.insert([make_points(rows, with_invalid=False, names=None)])
    store.insert([make_points(rows, with_invalid=False, names=None, seed=1, tags=tags)])

    size = "avg((pg_column_size(point.*) + 7) / 8 * 8)"
    with reading(store._engine) as connection:
        found = connection.execute(text(f"SELECT tags IS NULL, {size} FROM point GROUP BY 1 ORDER BY 1")).all()
    (_, with_tags), (_, without) = found
    assert 0 < with_tags - without <= 24


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service of one worker with the HTTP API."""
    folder = tmp_path_factory.mktemp("tags")
    write_bundle(folder / "digits.safetensors", make_bundle(classes=5))
    options = ("--workers", "1", "--api-port", "0")
    with running_server({"digits": folder / "digits.safetensors"}, folder / "data", *options) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    """A client of it."""
    with Client(server.grpc_target, timeout_seconds=60.0) as client:
        yield client


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    """Connections to its HTTP API."""
    with httpx.Client(base_url=server.api_url, timeout=60.0) as http:
        yield http


def stored(client: Client, ids: list[str], **tags: str) -> dict[str, Any]:
    """The stored points of these predictions, once all are there."""
    found: dict[str, Any] = {}

    def are_there() -> bool:
        found.update({each.prediction_id: each for each in client.points("digits", tags=tags)})
        return found.keys() >= set(ids)

    wait_until(are_there, what="stored points")
    return {name: found[name] for name in ids}


def test_every_call_of_the_client_has_tags(client: Client, server: Server) -> None:
    """One mapping for all rows or one for each; hostile values come back as they are."""
    probs = make_probs(3, 5)
    batched = client.score("digits", probs, tags=HOSTILE)
    each = client.score("digits", probs, tags=[LYON, {}, PARIS])
    gated = client.gate("digits", probs[0], tags={"call": "gate"})
    (streamed,) = client.stream("digits", [probs], tags={"call": "stream"})
    with Batcher(client, "digits", max_wait_seconds=0.2) as batcher:
        futures = [batcher.submit(probs[0], tags=tags) for tags in ({"call": "0"}, {"call": "1"}, None)]
        submitted = [future.result().prediction_id for future in futures]

    async def call() -> tuple[str, tuple[str, ...]]:
        async with AsyncClient(server.grpc_target) as other:
            aio = await other.gate("digits", probs[0], tags={"call": "aio"})
            return aio.prediction_id, (await other.score("digits", probs, tags={"call": "async"})).prediction_ids

    aio, scored = asyncio.run(call())
    expected = dict.fromkeys(batched.prediction_ids, HOSTILE)
    expected |= dict(zip(each.prediction_ids, [LYON, {}, PARIS], strict=True))
    expected |= {gated.prediction_id: {"call": "gate"}, aio: {"call": "aio"}}
    expected |= {name: {"call": "stream"} for name in streamed.prediction_ids}
    expected |= {name: {"call": "async"} for name in scored}
    expected |= dict(zip(submitted, [{"call": "0"}, {"call": "1"}, {}], strict=True))
    assert {name: point.tags for name, point in stored(client, list(expected)).items()} == expected
    found = stored(client, list(streamed.prediction_ids), call="stream")
    assert all(point.tags == {"call": "stream"} for point in found.values())


def test_large_batches_with_tags_are_split(server: Server) -> None:
    """By the size of the tags of the rows, too."""
    with Client(server.grpc_target, max_message_bytes=65_536) as small:
        scored = small.score(
            "digits", make_probs(600, 5), tags=[{"note": "x" * 100, "row": str(row)} for row in range(600)]
        )

    assert len(scored) == 600
    assert len(scored.batches) > 1


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ({"camera": "x" * (1 << 20)}, "tags: the value of camera has 1,048,576 characters; it must have 1 to 128"),
        ({"Camera": "7"}, "tags: 'Camera' is not a key"),
        ([{}, {"camera": "a\nb"}], r"row_tags\[1\]: the value of camera has a control character"),
        ([{}], "1 mappings of tags for 2 rows"),
        ({"camera": 7}, "the tags are not texts"),
    ],
)
def test_invalid_tags_are_refused_by_name(client: Client, tags: Any, message: str) -> None:
    """Field and row are named, and nothing is stored."""
    with pytest.raises(InvalidRequest, match=message):
        client.score("digits", make_probs(2, 5), tags=tags)


def test_filters_are_checked(client: Client) -> None:
    """A reference has no index."""
    with pytest.raises(InvalidRequest, match="tags: reference is not a filter"):
        list(client.points("digits", tags={"reference": "x"}))


def test_http_has_tags_and_traces(client: Client, http: httpx.Client) -> None:
    """In JSON and in the parameters of the Open Inference Protocol; a trace that is not valid is ignored."""
    rows = make_probs(2, 5).tolist()
    body = {"rows": rows, "tags": {"call": "json"}, "row_tags": [{"tags": {"camera": "7"}}, {"tags": {"call": "row"}}]}
    scored = http.post("/v1/models/digits/score", json=body, headers={"traceparent": HEADER})
    tensor = {"name": "probs", "datatype": "FP32", "shape": [1, 5], "data": rows[0]}
    infer = {"inputs": [tensor], "parameters": {"tag_call": "infer", "tag_camera": "9"}}
    inferred = http.post("/v2/models/digits/infer", json=infer, headers={"traceparent": "00-nonsense"})
    assert (scored.status_code, inferred.status_code) == (200, 200)

    wait_until(lambda: len(list(client.points("digits", tags={"call": "infer"}))) == 1, what="stored points")
    wait_until(lambda: len(list(client.points("digits", tags={"call": "row"}))) == 1, what="stored points")

    (point,) = client.points("digits", tags={"call": "json", "camera": "7"})
    assert (point.tags, point.trace_id) == ({"call": "json", "camera": "7"}, TRACE)
    (point,) = client.points("digits", tags={"call": "infer"})
    assert (point.tags, point.trace_id) == ({"call": "infer", "camera": "9"}, "")
    listed = http.get("/v1/models/digits/points", params={"tags": ["call=json", "camera=7"]}).json()
    assert [each["tags"] for each in listed["points"]] == [{"call": "json", "camera": "7"}]
    refused = http.get("/v1/models/digits/points", params={"tags": "camera"})
    assert (refused.status_code, refused.json()["field"]) == (400, "tags")
    bad = http.post("/v1/models/digits/score", json=body | {"row_tags": [{}, {"tags": {"camera": ""}}]})
    assert (bad.status_code, bad.json()["field"], bad.json()["row"]) == (400, "row_tags", 1)


def test_shadow_points_have_the_tags_of_the_call(client: Client, server: Server) -> None:
    """And its trace."""
    version = client.model("digits").active_version
    write_bundle(server.data_dir / "bundles" / "second.safetensors", make_bundle(classes=5, seed=1))
    second = client.deploy("digits", "second.safetensors")
    other = next(each.version for each in second.versions if each.version != version)
    client.shadow("digits", other)
    scored = client.score("digits", make_probs(1, 5), tags={"call": "shadowed"})
    client.shadow("digits", "")

    wait_until(
        lambda: len(list(client.points("digits", tags={"call": "shadowed"}, is_shadow=True))) == 1, what="shadow points"
    )
    (point,) = client.points("digits", tags={"call": "shadowed"}, is_shadow=True)
    assert (point.prediction_id, point.tags) == (scored.prediction_ids[0], {"call": "shadowed"})


def test_the_trace_of_a_grpc_call_is_stored(client: Client, server: Server) -> None:
    """From its metadata."""
    request = monitor_pb2.ScoreRequest(
        model="digits",
        tensor=monitor_pb2.Tensor(shape=[1, 5], data=make_probs(1, 5).tobytes()),
        prediction_ids=["traced"],
    )
    with grpc.insecure_channel(server.grpc_target) as channel:
        score = channel.unary_unary("/darksight.v1.MonitorService/Score")
        score(request.SerializeToString(), metadata=[("traceparent", HEADER)])

    assert stored(client, ["traced"])["traced"].trace_id == TRACE


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npz"])
def test_score_keeps_the_tags_of_a_file(suffix: str, tmp_path: Path) -> None:
    """A column for each key, in every format; in CSV no tag is a formula."""
    write_bundle(tmp_path / "digits.safetensors", make_bundle(classes=5))
    columns = {f"prob_{number}": column for number, column in enumerate(make_probs(3, 5).T.tolist())}
    columns |= {"tag_camera": ["7", "", "8"], "tag_note": ["=1+1", "a", "b"]}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")

    out = tmp_path / f"out.{suffix}"
    assert main(["score", str(tmp_path / "digits.safetensors"), str(tmp_path / "rows.parquet"), "--out", str(out)]) == 0

    if suffix == "csv":
        rows = list(csv.DictReader(out.read_text(encoding="utf-8").splitlines()))
        found = {name: [row[name] for row in rows] for name in ("tag_camera", "tag_note")}
    else:
        found = pq.read_table(out).to_pydict() if suffix == "parquet" else dict(np.load(out))
    assert list(found["tag_camera"]) == ["7", "", "8"]
    assert list(found["tag_note"]) == ["'=1+1" if suffix == "csv" else "=1+1", "a", "b"]


def test_score_sends_the_tags_of_a_file(client: Client, server: Server, tmp_path: Path) -> None:
    """To a service, which stores them."""
    columns: dict[str, Any] = {f"prob_{number}": column for number, column in enumerate(make_probs(2, 5).T.tolist())}
    pq.write_table(pa.table(columns | {"id": ["file-1", "file-2"], "tag_file": ["a", "b"]}), tmp_path / "rows.parquet")

    arguments = ["score", "digits", str(tmp_path / "rows.parquet"), "--out", str(tmp_path / "out.csv")]
    assert main([*arguments, "--server", server.grpc_target]) == 0

    found = stored(client, ["file-1", "file-2"])
    assert [point.tags for point in found.values()] == [{"file": "a"}, {"file": "b"}]
