"""Good requests of every form, from which hostile ones are made."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from darksight_client.stubs.darksight.v1 import admin_pb2, monitor_pb2
from darksight_client.stubs.inference import grpc_predict_v2_pb2
from google.protobuf.descriptor import FieldDescriptor
from numpy.typing import NDArray

__all__ = ["INFER", "SCORE", "admin_seeds", "hostile_top_requests", "infer_seeds", "score_seeds", "spoil"]

SCORE, INFER = "/darksight.v1.MonitorService/Score", "/inference.GRPCInferenceService/ModelInfer"


def score_seeds(model: str, probs: NDArray[np.float32]) -> list[bytes]:
    """ScoreRequests with some rows (n, K)."""
    from darksight_service.store.ids import make_batch_id

    tensor = monitor_pb2.Tensor(shape=probs.shape, data=probs.tobytes())
    lists = monitor_pb2.Rows(rows=[monitor_pb2.Row(values=row) for row in probs.tolist()])
    logits = monitor_pb2.Tensor(shape=probs.shape, data=np.log(probs).tobytes())
    found = [
        monitor_pb2.ScoreRequest(model=model, tensor=tensor),
        monitor_pb2.ScoreRequest(model=model, tensor=tensor, partial_ok=True),
        monitor_pb2.ScoreRequest(model=model, rows=lists),
        monitor_pb2.ScoreRequest(model=model, rows=lists, partial_ok=True),
        monitor_pb2.ScoreRequest(model=model, tensor=logits, is_logits=True, partial_ok=True),
        monitor_pb2.ScoreRequest(
            model=model,
            tensor=tensor,
            prediction_ids=[f"row {row}" for row in range(len(probs))],
            batch_id=make_batch_id(int(time.time() * 1000)),
            event_time={"seconds": int(time.time())},
            partial_ok=True,
        ),
    ]
    return [message.SerializeToString() for message in found]


def hostile_top_requests(model: str, names: Sequence[str], count: int, seed: int) -> Iterator[bytes]:
    """ScoreRequests of rows of the most probable classes, most of them wrong in one way or several.

    Parameters
    ----------
    model
        Name of the model.
    names
        Its classes.
    count, seed
        How many requests, and which.
    """
    rng = random.Random(seed)
    logs = (-0.1, -0.5, -3.0, -40.0, -9999.0, 0.0, 1e-9, 0.5, 700.0, math.nan, math.inf, -math.inf, 1e308)
    numbers = (0, 1, 2, len(names) - 1, len(names), -1, -2, 2**31 - 1, -(2**31))
    others = (0.0, 0.0, 0.01, 0.5, 1.0, 1.5, -0.1, math.nan, math.inf)
    resolutions = ("", "", "", "top2", "top3", "top20", "top1000", "top1001", "top0", "full", "1e-4", "x" * 5_000, "\0")

    def row() -> monitor_pb2.TopRow:
        k = rng.choice((0, 1, 2, 2, 3, 3, 4, 50, 2_000))
        is_good, is_named = rng.random() < 0.6, rng.random() < 0.4
        chosen = (
            rng.sample(range(len(names)), min(k, len(names))) if is_good else [rng.choice(numbers) for _ in range(k)]
        )
        values = [math.log(0.9 / max(len(chosen), 1))] * len(chosen) if is_good else [rng.choice(logs) for _ in chosen]
        if rng.random() < 0.05:
            values = values[1:]
        known = [names[each] if 0 <= each < len(names) else rng.choice(_TEXTS) for each in chosen]
        return monitor_pb2.TopRow(
            classes=[] if is_named else chosen,
            class_names=known if is_named or rng.random() < 0.02 else [],
            log_probabilities=values,
            other=0.0 if is_good else rng.choice(others),
        )

    for _ in range(count):
        message = monitor_pb2.ScoreRequest(
            model=model,
            top=monitor_pb2.TopRows(rows=[row() for _ in range(rng.choice((0, 1, 1, 2, 5)))]),
            resolution=rng.choice(resolutions),
            partial_ok=rng.random() < 0.5,
            is_logits=rng.random() < 0.03,
        )
        if rng.random() < 0.1:
            message.class_names.extend(rng.choice((names, [*names, names[0]], ["unknown"], [""])))
        if rng.random() < 0.05:
            message.prediction_ids.extend(rng.choice(_TEXTS) for _ in message.top.rows)
        if rng.random() < 0.05:
            message.tags["camera"] = rng.choice(_TEXTS)
        yield message.SerializeToString()


def infer_seeds(model: str, probs: NDArray[np.float32]) -> list[bytes]:
    """ModelInferRequests with some rows (n, K), as raw and as typed contents."""
    pb2, found = grpc_predict_v2_pb2, []
    for is_raw in (True, False):
        tensor = pb2.ModelInferRequest.InferInputTensor(name="probs", datatype="FP32", shape=probs.shape)
        if not is_raw:
            tensor.contents.fp32_contents.extend(probs.ravel().tolist())
        message = pb2.ModelInferRequest(model_name=model, inputs=[tensor])
        if is_raw:
            message.raw_input_contents.append(probs.tobytes())
        found.append(message.SerializeToString())
    return found


_TEXTS = ("", "a", "../../etc/passwd", "x" * 10_000, "\0", "\u202e\n", "'; DROP TABLE point; --", "0" * 64, "k10", "é")
_NUMBERS = {
    FieldDescriptor.CPPTYPE_DOUBLE: (0.0, -1.0, 1.0, 0.5, math.nan, math.inf, -math.inf, 1e300, 1e-300),
    FieldDescriptor.CPPTYPE_FLOAT: (0.0, -1.0, 0.5, math.nan, math.inf),
    FieldDescriptor.CPPTYPE_INT32: (0, 1, -1, 99, 2**31 - 1, -(2**31)),
    FieldDescriptor.CPPTYPE_INT64: (0, 1, -1, 2**53, 2**63 - 1, -(2**63), 253_402_300_800),
    FieldDescriptor.CPPTYPE_BOOL: (True, False),
    FieldDescriptor.CPPTYPE_ENUM: (0, 1, 2, 6, 99, -1),
    FieldDescriptor.CPPTYPE_STRING: _TEXTS,
}


def spoil(message: Any, rng: random.Random) -> None:
    """Set fields of a message to hostile values of their types."""
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.6:
            continue
        is_message = field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE
        if is_message and field.message_type.GetOptions().map_entry:
            entries = getattr(message, field.name)
            entries.clear()
            for _ in range(rng.choice((0, 1, 3, 50))):
                entries[rng.choice(_TEXTS) + str(rng.randrange(100))] = rng.choice(_TEXTS)
        elif field.is_repeated:
            entries = getattr(message, field.name)
            del entries[:]
            for _ in range(rng.choice((0, 1, 3, 50, 1_000))):
                if is_message:
                    spoil(entries.add(), rng)
                else:
                    entries.append(rng.choice(_NUMBERS[field.cpp_type]))
        elif is_message:
            spoil(getattr(message, field.name), rng)
        else:
            setattr(message, field.name, rng.choice(_NUMBERS[field.cpp_type]))


def admin_seeds(model: str, version: str, bundle: str, *, hostile: int = 0) -> dict[str, list[bytes]]:
    """Requests of all methods that operators call, by method; beside each, some with hostile values.

    Parameters
    ----------
    model, version
        A model and its active version.
    bundle
        A file of the bundle directory.
    hostile
        How many requests with hostile values.
    """
    named: dict[str, Any] = {"model": model, "author": "fuzz", "comment": "a comment"}
    region = {**named, "version": version, "name": "corner"}
    polygon = [{"x": 0.0, "y": 0.0}, {"x": 9.0, "y": 0.0}, {"x": 9.0, "y": 9.0}]
    policy, until = {"alpha": 0.05, "fail_open": True}, {"seconds": int(time.time()) + 3_600}
    outcome = {"prediction_id": "row 0", "label": 1, "observed_at": {"seconds": int(time.time())}}
    calls: list[tuple[str, dict[str, Any]]] = [
        ("ListModels", {}),
        ("GetModel", {"model": model}),
        ("DeployBundle", {"model": model, "path": bundle, "author": "fuzz"}),
        ("ActivateVersion", {"model": model, "version": version, "author": "fuzz"}),
        ("RollBack", {"model": model, "author": "fuzz"}),
        ("SetShadow", {"model": model, "version": version, "author": "fuzz"}),
        ("GetPolicy", {"model": model}),
        ("SetPolicy", {**named, "policy": policy}),
        ("DryRunPolicy", {"model": model, "policy": policy, "until": until}),
        ("ResetEvidence", named),
        ("ListRegions", {"model": model, "version": version, "include_history": True}),
        ("PreviewRegion", {"model": model, "polygon": polygon, "until": until, "examples": 5}),
        ("SaveRegion", {**region, "polygon": polygon, "expires_at": until}),
        ("SetRegionMode", {**region, "mode": 2}),
        ("RemoveRegion", region),
        ("CarryOverRegion", {**region, "to_version": version, "save": True}),
    ]
    good = {
        f"/darksight.v1.AdminService/{name}": getattr(admin_pb2, f"{name}Request")(**fields) for name, fields in calls
    }
    points = {"model": model, "until": until, "decisions": [1, 2], "reasons": [1, 2], "predicted": [0], "page_size": 5}
    good["/darksight.v1.MonitorService/ListPoints"] = monitor_pb2.ListPointsRequest(**points)
    good["/darksight.v1.MonitorService/ReportOutcomes"] = monitor_pb2.ReportOutcomesRequest(
        model=model, outcomes=[outcome]
    )
    rng, found = random.Random(19), {}
    for method, message in good.items():
        messages = [message]
        for _ in range(hostile):
            messages.append(type(message).FromString(message.SerializeToString()))
            spoil(messages[-1], rng)
        # An empty message has no byte to change.
        found[method] = [each.SerializeToString() or b"\x0a\x01a" for each in messages]
    return found
