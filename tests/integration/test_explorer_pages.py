"""The gate, drift, review and points pages over HTTP: a real explorer on a real store."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pytest
from darksight_service.control.changes import deploy_at_start
from darksight_service.control.state_file import StateFile
from darksight_service.ingest.records import decode, encode_points
from darksight_service.settings import Settings
from darksight_service.store.ids import make_batch_id, prediction_id
from darksight_service.store.points import OutcomeBatch, PointFilter
from darksight_service.store.store import Store

from darksight_core.bundle import read_bundle, write_bundle
from darksight_core.drift.detectors import make_detectors
from darksight_core.evaluation.drift import baseline_of
from darksight_core.gate.gate import Gate
from darksight_core.guarantees.conformal import cutoff
from darksight_core.runtime.policy import ScoringPolicy
from darksight_core.runtime.result_block import ResultBlock
from tests.support.bundles import make_bundle
from tests.support.explorers import running_explorer
from tests.support.points import make_points

ROWS = 1_200
CLASSES = 5
LABELLED = 300


@dataclass(frozen=True, slots=True)
class Explored:
    """An explorer, its store, and the right classes by name of the prediction."""

    client: httpx.Client
    store: Store
    truth: dict[str, int]
    until_ms: int

    def get(self, path: str, **params: Any) -> Any:
        """JSON of an endpoint about the model."""
        response = self.client.get(f"/api/{path}", params={"model": "digits", **params})
        assert response.status_code == 200, response.text
        return response.json()

    def post(self, path: str, **body: Any) -> httpx.Response:
        """Answer to something that changes."""
        csrf = self.client.get("/api/session").json()["csrf"]
        headers = {"x-csrf-token": csrf, "origin": str(self.client.base_url).rstrip("/")}
        return self.client.post(f"/api/{path}", json={"model": "digits", **body}, headers=headers)

    def call(self, verb: str, path: str, body: Any = None, **params: str) -> httpx.Response:
        """Answer of an operation about the model."""
        csrf = self.client.get("/api/session").json()["csrf"]
        headers = {"x-csrf-token": csrf, "origin": str(self.client.base_url).rstrip("/")}
        return self.client.request(verb, f"/v1/models/digits/{path}", json=body, params=params, headers=headers)


@pytest.fixture(scope="module")
def explored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Explored]:
    """A model with a gate, two hours of traffic whose second one is half noise, and some labels."""
    folder = tmp_path_factory.mktemp("explored")
    settings = Settings(data_dir=folder / "data", explorer_port=0)
    settings.bundles.mkdir(parents=True)
    bundle = make_bundle(2_000, CLASSES)
    gate = Gate(outlier=cutoff(len(bundle.calibration), 0.05), reject_score="msp", threshold=-1.0)
    path = folder / "gated.safetensors"
    part = {"kind": "accuracy", "promised": 0.97, "delta": 0.05, "promise": "for the test", "feasible": True}
    write_bundle(path, bundle.with_gate(gate, {"outlier": None, "reject": part}))
    store = Store.open(settings.store_url, audit_rate=0.3, auto_upgrade=True)
    deploy_at_start(StateFile(settings.data_dir / "registry.json"), store, settings.bundles, [("digits", path)])
    detectors = make_detectors(baseline_of(read_bundle(path)))
    store.follow_drift("replica", lambda model, version: detectors)
    until = time.time_ns() // 1_000_000
    truth = _fill(store, path, until)
    with running_explorer(settings) as url, httpx.Client(base_url=url, timeout=60.0) as client:
        yield Explored(client, store, truth, until)
    store.close()


def _fill(store: Store, path: Path, until: int) -> dict[str, int]:
    bundle = read_bundle(path)
    policy = ScoringPolicy.of(bundle)
    rng = np.random.default_rng(5)
    truth: dict[str, int] = {}
    minutes = 120
    for minute in range(minutes):
        n = ROWS // minutes
        sharp = np.full((n, 1), 0.4)
        sharp[(np.arange(n) % 2 == 0) & (minute >= minutes // 2)] = 5.0
        probs = np.array([rng.dirichlet(np.full(CLASSES, each)) for each in sharp[:, 0]]).astype(np.float32)
        scored = policy.score(probs)
        batch_id = make_batch_id(until - (minutes - minute) * 60_000, rng.bytes(7))
        block = ResultBlock.of(scored)
        record = encode_points(batch_id, "digits", bundle.version, False, 0, (), block, probs.tobytes())
        store.insert([decode(record)])
        for row, each in enumerate(probs.astype(np.float64)):
            truth[prediction_id(batch_id, row)] = int(rng.choice(CLASSES, p=each / each.sum()))
    some = list(truth)[:LABELLED]
    labels = np.array([truth[name] for name in some], dtype=np.int32)
    store.insert([OutcomeBatch("digits", until, tuple(some), labels, np.full(LABELLED, until))])
    return truth


def corners(*places: tuple[float, float]) -> list[dict[str, float]]:
    """A polygon as JSON."""
    return [{"x": x, "y": y} for x, y in places]


def wait_for(explored: Explored, path: str, key: str, **params: Any) -> Any:
    """An answer after its background work is done."""
    end = time.monotonic() + 60.0
    while time.monotonic() < end:
        found = explored.get(path, **params)
        if not (found["learned_score"] if key == "is_learning" else found)[key]:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{path} never finished")


def test_scores_are_compared_on_stored_labels(explored: Explored) -> None:
    """Every score has a curve that ends at the accuracy of all, and the slider's stops agree with the store."""
    found = wait_for(explored, "gate", "is_computing")

    assert found["used"]["labels"] >= LABELLED
    names = {line["name"] for line in found["curves"]}
    assert names == {"msp", "entropy", "margin", "doctor", "gen", "log_density", "log_kde", "outlier_score", "refitted"}
    for line in found["curves"]:
        assert line["accuracy"][-1] == pytest.approx(1.0 - found["used"]["errors"] / found["used"]["labels"])
    steps = found["steps"]
    assert steps["threshold"][0] == "-inf"
    assert steps["accepted"] == sorted(steps["accepted"], reverse=True)


def test_the_promise_stands_beside_what_is_measured(explored: Explored) -> None:
    """The bundle promises 97%; its gate accepts rows of which far fewer are right, and the page says so."""
    found = explored.get("gate")

    promise, steps = found["promise"], found["steps"]
    now = steps["threshold"].index(found["gate"]["reject"]["threshold"])
    assert (promise["promised"], promise["verdict"]) == (0.97, "broken")
    assert promise["measured"]["rows"] == steps["accepted"][now]
    assert promise["measured"]["rows"] - promise["measured"]["right"] == steps["wrong"][now]
    assert (promise["measured"]["low"], promise["measured"]["high"]) == (steps["low"][now], steps["high"][now])


def test_a_certificate_or_the_number_of_labels_it_takes(explored: Explored) -> None:
    """40% accuracy can be certified on these labels; 99.9% cannot, and the answer says so."""
    easy = explored.get("gate/certificate", accuracy=0.4)["certificate"]
    hard = explored.get("gate/certificate", accuracy=0.999)["certificate"]

    assert easy["threshold"]["feasible"]
    assert 0.0 < easy["coverage"] <= 1.0
    assert not hard["threshold"]["feasible"]
    assert hard["threshold"]["labels_needed"] is None or hard["threshold"]["labels_needed"] > LABELLED


def test_a_policy_is_tried_applied_and_in_the_audit_trail(explored: Explored) -> None:
    """What the dry run counts is what the gate then does; without a reason nothing changes."""
    tried = explored.get("gate/dry-run", alpha=0.05, threshold=1.0)
    assert tried["before"]["points"] == ROWS
    assert tried["after"]["accepted"] < tried["before"]["accepted"]

    refused = explored.post("gate/policy", alpha=0.05, threshold="1.0")
    assert refused.status_code == 400
    assert refused.json()["field"] == "comment"

    done = explored.post("gate/policy", alpha=0.05, threshold="1.0", comment="too many errors", author="ada")
    assert done.status_code == 200
    assert done.json()["gate"]["reject"]["threshold"] == 1.0
    assert explored.get("gate")["gate"]["reject"]["threshold"] == 1.0
    change = explored.get("gate/history")["changes"][0]
    assert (change["author"], change["comment"]) == ("ada", "too many errors")
    assert float(change["threshold"]) == pytest.approx(1.0 / (1.0 + np.exp(-1.0)))


@pytest.mark.parametrize(
    ("path", "params", "field"),
    [
        ("gate", {"labels": "some"}, "labels"),
        ("gate", {"alpha": "many"}, "alpha"),
        ("gate/dry-run", {"threshold": "high"}, "threshold"),
        ("points", {"since_ms": 5, "until_ms": 5}, "since_ms"),
        ("review", {"stream": "all"}, "stream"),
        ("points", {"decisions": "maybe"}, "decisions"),
        ("points", {"classes": "one"}, "classes"),
        ("points", {"page_token": "AAAA"}, "page_token"),
    ],
)
def test_what_cannot_be_understood_is_named(explored: Explored, path: str, params: dict[str, Any], field: str) -> None:
    """A bad parameter is an error of 400 that names it."""
    response = explored.client.get(f"/api/{path}", params={"model": "digits", **params})

    assert response.status_code == 400
    assert response.json()["field"] == field


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"expires_at": "soon"}, "expires_at"),
        ({"polygon": [{"x": 10**400, "y": 0}]}, "polygon"),
        ({"polygon": [[0, 0]]}, "polygon"),
    ],
)
def test_a_region_that_cannot_be_is_refused(explored: Explored, values: dict[str, Any], field: str) -> None:
    """A time that no list of regions could tell, and a number that is none, are errors that name the field."""
    whole = {"version": explored.get("map")["version"], "name": "far", "polygon": corners((0, 0), (1, 0), (1, 1))}

    response = explored.call("POST", "regions", whole | values)

    assert response.status_code == 400
    assert response.json()["field"] == field
    assert "far" not in [region["name"] for region in explored.call("GET", "regions").json()["regions"]]


def test_drift_now_has_a_kind_with_its_reason_and_what_it_costs(explored: Explored) -> None:
    """The noise of the second hour is new content; class shares have intervals, and the accuracy is withheld."""
    found = explored.get("drift")

    drift, audit = found["drift"], found["audit"]
    assert [each["kind"] for each in drift["evidence"]] == ["scores", "confidence", "classes", "witnesses"]
    assert any(each["value"] > each["threshold"] for each in drift["evidence"])
    assert drift["rows"] >= ROWS
    assert drift["verdict"] in ("new_content", "less_sure")
    assert "in calibration" in drift["reason"]
    assert explored.until_ms - 7_300_000 < drift["since_ms"] < explored.until_ms
    for share in drift["class_shares"].values():
        assert share["low"] <= share["estimate"] <= share["high"]
    assert drift["accuracy"]["estimate"] is None
    assert drift["accuracy"]["withheld"]
    # Labels are of points from before the version was deployed.
    assert audit["labels"] == 0


def test_regions_are_compared_where_there_are_some(explored: Explored) -> None:
    """The share of a marked part of the map, of the reference and now, and of everything else."""
    change = {
        "version": explored.get("map")["version"],
        "region": "middle",
        "action": "save",
        "polygon": [[-4.0, -4.0], [4.0, -4.0], [4.0, 4.0], [-4.0, 4.0]],
        "expires_ms": 0,
    }
    explored.store.append_change("region", "digits", change, author="ada")
    # By the clock of its change it has not ended, by ours it has.
    over = {**change, "region": "over", "expires_ms": time.time_ns() // 1_000_000 + 1}
    explored.store.append_change("region", "digits", over, author="ada")
    done = explored.post("gate/policy", alpha=0.05, threshold="-1.0", comment="folds the trail", author="ada")
    assert done.status_code == 200

    regions = explored.get("drift")["drift"]["regions"]

    assert explored.call("DELETE", "regions/middle", version=change["version"]).status_code == 200
    cells = {region["name"]: region for region in regions}
    assert set(cells) == {"middle", "elsewhere"}
    assert sum(region["share"] for region in regions) == pytest.approx(1.0)
    assert cells["middle"]["share"] > cells["middle"]["reference"]
    assert cells["middle"]["is_changed"] is (cells["middle"]["residual"] > 3.0)
    assert cells["middle"]["residual"] == pytest.approx(-cells["elsewhere"]["residual"])


def test_a_threshold_is_tried_outside_of_regions(explored: Explored) -> None:
    """What a region refuses is not kept by any threshold, neither on labelled points nor in the dry run."""
    version, name = explored.get("map")["version"], "right/half"
    polygon = corners((0.0, -1e4), (1e4, -1e4), (1e4, 1e4), (0.0, 1e4))
    path = f"regions/{quote(name, safe='')}"
    before = explored.get("gate", alpha=0.05)["steps"]["accepted"][0]
    region = {"version": version, "name": name, "polygon": polygon}
    assert explored.call("POST", "regions", region).status_code == 200
    mode = {"version": version, "mode": "REGION_MODE_ENFORCE"}
    assert explored.call("PUT", f"{path}/mode", mode).json()["region"]["name"] == name

    found = explored.get("gate", alpha=0.05)["steps"]["accepted"][0]

    run = explored.get("gate/dry-run", alpha=0.05, threshold="-inf")["after"]
    assert explored.call("DELETE", path, version=version).status_code == 200
    assert run["regions"] > 0
    assert 0 < found == run["accepted_labelled"] < before


@pytest.mark.parametrize("stream", ["outliers", "doubtful", "audit", "certificate"])
def test_a_stream_has_points_without_a_label(explored: Explored, stream: str) -> None:
    """Each with its classes from the most probable down."""
    found = explored.get("review", stream=stream)

    assert found["items"]
    assert found["counts"][stream] >= len(found["items"])
    for item in found["items"]:
        assert item["probs"] == sorted(item["probs"], reverse=True)
        assert item["classes"][0] == item["predicted"]
        if stream == "certificate":
            assert item["decision"] == "ACCEPT"
        assert (item["odds"] is None) is (stream in ("outliers", "doubtful"))
    # Other tests override the policy, which has no certificate.
    assert found["certificate"]["verdict"] in ("open", "none")


def test_labels_are_stored_once_and_measure_accuracy(explored: Explored) -> None:
    """Working through the audit in its order gives an accuracy with an interval that contains the true one."""
    before = explored.get("review/learned-score")["used"]["labels"]
    items = explored.get("review", stream="audit", limit=200)["items"]
    labels = [
        {"prediction_id": item["prediction_id"], "label": explored.truth[item["prediction_id"]]} for item in items
    ]

    for _ in range(2):
        response = explored.call("POST", "outcomes", {"outcomes": labels})
        assert response.status_code == 200
        assert response.json()["recorded"] == str(len(labels))

    assert explored.get("review/learned-score")["used"]["labels"] == before + len(labels)
    audit = explored.get("review", stream="audit")["audit"]
    assert audit["drawn"] > audit["labelled"] >= len(labels)
    stored = explored.store.newest_points(PointFilter("digits"), limit=ROWS)
    # The frame has the newest point first, the truth the oldest.
    right = np.mean(np.array(list(explored.truth.values())) == stored.predicted[::-1])
    assert audit["all"]["low"] <= right <= audit["all"]["high"] < audit["all"]["low"] + 0.5
    assert audit["accepted"]["value"] > audit["all"]["value"]
    for each in audit["classes"]:
        assert each["low"] <= each["value"] <= each["high"]
    score = wait_for(explored, "review/learned-score", "is_learning")["learned_score"]
    assert score["labels"] == before + len(labels)
    assert score["learned"]["auroc"] == pytest.approx(score["softmax"]["auroc"], abs=0.1)


@pytest.mark.parametrize(
    "label",
    [{"prediction_id": "a", "label": 99}, {"prediction_id": "a", "label": None}, {"prediction_id": "", "label": 1}],
)
def test_a_label_that_cannot_be_is_refused(explored: Explored, label: dict[str, Any]) -> None:
    """As ReportOutcomes refuses it."""
    assert explored.call("POST", "outcomes", {"outcomes": [label]}).status_code == 400


def test_pages_of_points_follow_each_other(explored: Explored) -> None:
    """All outliers, each once, newest first; and one by its name, with its probabilities."""
    seen: list[str] = []
    token = ""
    until = explored.until_ms + 1
    while True:
        found = explored.get("points", reasons="outlier", page_size=40, page_token=token, since_ms=1, until_ms=until)
        seen += [point["prediction_id"] for point in found["points"]]
        token = found["next_token"]
        if not token:
            break

    assert len(seen) == len(set(seen)) == explored.get("gate/dry-run")["before"]["outliers"]
    one = explored.get("points/find", name=seen[0])["points"]
    assert [point["prediction_id"] for point in one] == [seen[0]]
    assert sum(one[0]["probs"]) == pytest.approx(1.0, abs=0.01)
    assert explored.get("points/find", name="nobody")["points"] == []


def test_a_csv_file_has_what_the_table_has(explored: Explored) -> None:
    """As many rows as asked for, under a header, as a file to save."""
    response = explored.client.get("/api/points.csv", params={"model": "digits", "limit": 1_000})

    assert response.headers["content-disposition"].startswith("attachment; filename*=UTF-8''digits-points.csv")
    rows = list(csv.DictReader(io.StringIO(response.text)))
    assert len(rows) == 1_000
    assert {row["decision"] for row in rows} == {"ACCEPT", "REJECT"}
    assert float(rows[0]["p_value"]) > 0.0


def test_a_name_is_no_formula_in_a_csv_file(explored: Explored) -> None:
    """A caller's name that a spreadsheet would run is marked as text."""
    long_ago = explored.until_ms - 60 * 86_400_000
    version = explored.get("map")["version"]
    batch = make_points(
        1, ms=long_ago, names=("=1+1",), classes=CLASSES, version=version, with_invalid=False, reason=[1]
    )
    explored.store.insert([batch])

    span = {"since_ms": long_ago, "until_ms": long_ago + 1_000}
    response = explored.client.get("/api/points.csv", params={"model": "digits", **span})

    assert [row["prediction_id"] for row in csv.DictReader(io.StringIO(response.text))] == ["'=1+1"]


def test_points_show_and_are_found_by_their_tags(explored: Explored) -> None:
    """As they were sent, in JSON and in a CSV file without formulas."""
    long_ago = explored.until_ms - 75 * 86_400_000
    version = explored.get("map")["version"]
    hostile = {"note": "=1+1", "site": "Lyon, <b>é</b>", "camera": "7", "reference": "a\u202egnp.exe"}
    options: dict[str, Any] = {"ms": long_ago, "classes": CLASSES, "version": version, "with_invalid": False}
    batch = make_points(3, tags=[hostile, {"camera": "7"}, {}], trace=bytes(range(16)), reason=[1, 1, 1], **options)
    explored.store.insert([batch])

    span = {"model": "digits", "since_ms": long_ago, "until_ms": long_ago + 1_000}
    listed = explored.get("points", **span, tags="site=Lyon, <b>é</b>, camera=7")["points"]
    response = explored.client.get("/api/points.csv", params={**span, "tags": "camera=7"})
    refused = explored.client.get("/api/points", params={**span, "tags": "reference=x"})

    assert [(point["tags"], point["trace_id"]) for point in listed] == [(hostile, bytes(range(16)).hex())]
    rows = list(csv.DictReader(io.StringIO(response.text)))
    assert sorted((json.loads(row["tags"]) for row in rows), key=len) == [{"camera": "7"}, hostile]
    assert all(row["tags"].startswith("{") and row["tags"].isascii() for row in rows)
    assert refused.status_code == 400
    assert "reference is not a filter" in refused.text
    (found,) = [point for point in explored.get("points", **span)["points"] if not point["tags"]]
    assert explored.get("map/point", id=found["id"].replace("-", ""))["tags"] == {}


def test_a_point_of_an_unknown_reason_is_listed(explored: Explored) -> None:
    """A row that a newer version or a damaged disk has stored does not take the others with it."""
    long_ago = explored.until_ms - 80 * 86_400_000
    version = explored.get("map")["version"]
    batch = make_points(
        2, ms=long_ago, names=("a", "b"), classes=CLASSES, version=version, with_invalid=False, reason=[1, 99]
    )
    explored.store.insert([batch])

    span = {"model": "digits", "since_ms": long_ago, "until_ms": long_ago + 1_000}
    listed = explored.get("points", **span)["points"]
    response = explored.client.get("/api/points.csv", params=span)

    assert sorted(row["reason"] for row in listed) == ["NONE", "UNKNOWN"]
    assert sorted(row["reason"] for row in csv.DictReader(io.StringIO(response.text))) == ["NONE", "UNKNOWN"]


def test_labels_need_the_session_and_its_token(explored: Explored) -> None:
    """A request of another site changes nothing."""
    response = explored.client.post("/v1/models/digits/outcomes", json={"outcomes": []})

    assert response.status_code == 403


def test_the_map_has_its_border_and_tells_which_centres_have_points(explored: Explored) -> None:
    """The page draws points on the border as squares, and centres without points near with four points."""
    found = explored.get("map")

    assert found["bound"] > 0.0
    assert len(found["has_points_near"]) == len(found["means"])
    assert set(found["has_points_near"]) <= {True, False}


def test_entropy_is_told_where_probabilities_were_kept(explored: Explored) -> None:
    """A row without any has no entropy and keeps its largest probability; no rows are a column, too."""
    until = explored.until_ms - 90 * 86_400_000
    version = explored.get("map")["version"]
    lost = np.full((2, CLASSES), np.nan)
    batch = make_points(2, ms=until, classes=CLASSES, version=version, names=None, with_invalid=False, probs=lost)
    explored.store.insert([batch])
    params = {"model": "digits", "entropy": 1, "since_ms": until, "until_ms": until + 1}

    found = columns_of(explored.client.get("/api/map/points", params=params).content)
    nothing = columns_of(explored.client.get("/api/map/points", params={**params, "since_ms": until + 1}).content)

    assert np.isnan(found["entropy"]).tolist() == [True, True]
    assert found["top"].tolist() == batch.top[::-1].tolist()
    assert len(nothing["entropy"]) == 0


def test_the_values_of_a_tag_are_a_column_of_numbers(explored: Explored) -> None:
    """With each text once, most frequent first; 0 is no value, 1 what the store keeps as `_other`."""
    until = explored.until_ms - 95 * 86_400_000
    version = explored.get("map")["version"]
    hostile = "<img src=x onerror=alert(1)>"
    some = [{"site": hostile}] * 3 + [
        {"site": "b", "camera": "7"},
        {"site": "b"},
        {},
        {"camera": "7"},
        {"site": "_other"},
    ]
    rows = some + [{"site": f"s{number:03d}"} for number in range(190)]
    options: dict[str, Any] = {"ms": until, "classes": CLASSES, "version": version, "with_invalid": False}
    explored.store.insert([make_points(len(rows), tags=rows, reason=[1] * len(rows), **options)])
    params = {"model": "digits", "tag_key": "site", "since_ms": until, "until_ms": until + 1}

    answer = explored.client.get("/api/map/points", params=params).content
    nothing = explored.client.get("/api/map/points", params={**params, "tag_key": "unheard"}).content
    refused = explored.client.get("/api/map/points", params={**params, "tag_key": "Site"})

    texts = meta_of(answer)["tag_values"]
    assert texts == [hostile, "b", *(f"s{number:03d}" for number in range(190))]
    column = columns_of(answer)["tag"]
    # The newest point is the last one of a batch.
    assert column[::-1][:9].tolist() == [2, 2, 2, 3, 3, 0, 0, 1, 4]
    assert column.dtype == np.uint16
    assert meta_of(nothing)["tag_values"] == []
    assert set(columns_of(nothing)["tag"].tolist()) == {0}
    assert (refused.status_code, "tag_key: must be the key of a tag" in refused.text) == (400, True)
    assert {"camera", "site"} <= set(explored.get("map")["tag_keys"])
    assert "tag" not in columns_of(explored.client.get("/api/map/points", params={**params, "tag_key": ""}).content)


def meta_of(data: bytes) -> dict[str, Any]:
    """The JSON values of an answer in columns."""
    meta: dict[str, Any] = json.loads(data[4 : 4 + int.from_bytes(data[:4], "little")])["meta"]
    return meta


def columns_of(data: bytes) -> dict[str, np.ndarray]:
    """Arrays of an answer in columns."""
    start = 4 + int.from_bytes(data[:4], "little")
    columns = json.loads(data[4:start])["columns"]
    return {
        name: np.frombuffer(data, each["type"], each["length"], start + each["offset"])
        for name, each in columns.items()
    }
