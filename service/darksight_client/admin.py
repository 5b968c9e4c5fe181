"""The calls of an operator; generators of steps as in `calls`.

Changes are not repeated when the connection fails, as the server may have made them: a second `roll_back` would undo
the first. `Unavailable` then means: look at `model()` and decide.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from darksight_client.calls import Calls
from darksight_client.models import (
    DryRun,
    EffectivePolicy,
    Model,
    Policy,
    PolicyState,
    policy_message,
    read_counts,
    read_model,
    read_policy,
    read_policy_state,
)
from darksight_client.replicas import CallSteps
from darksight_client.requests import Time, as_timestamp
from darksight_client.stubs.darksight.v1 import admin_pb2

__all__ = ["activate", "deploy", "dry_run_policy", "model", "models", "policy", "roll_back", "set_policy", "shadow"]

_ADMIN = "/darksight.v1.AdminService/"


def models(calls: Calls) -> CallSteps[tuple[Model, ...]]:
    """All models of the server."""
    request = admin_pb2.ListModelsRequest()
    answer = yield from calls.unary(_ADMIN + "ListModels", request, admin_pb2.ListModelsResponse)
    return tuple(read_model(each) for each in answer.models)


def model(calls: Calls, name: str) -> CallSteps[Model]:
    """One model."""
    request = admin_pb2.GetModelRequest(model=name)
    answer = yield from calls.unary(_ADMIN + "GetModel", request, admin_pb2.GetModelResponse)
    return read_model(answer.model)


def deploy(calls: Calls, model: str, path: str, *, activate: bool = False, author: str = "") -> CallSteps[Model]:
    """Add a bundle as a version; a new model starts to serve it at once.

    Parameters
    ----------
    model
        New or known.
    path
        Of the bundle, relative to the server's bundle directory.
    activate
        Whether it is to score from now on.
    author
        For the audit trail.
    """
    request = admin_pb2.DeployBundleRequest(model=model, path=path, activate=activate, author=author)
    return (yield from _change(calls, "DeployBundle", request, admin_pb2.DeployBundleResponse))


def activate(calls: Calls, model: str, version: str, *, author: str = "") -> CallSteps[Model]:
    """Let a version score from now on."""
    request = admin_pb2.ActivateVersionRequest(model=model, version=version, author=author)
    return (yield from _change(calls, "ActivateVersion", request, admin_pb2.ActivateVersionResponse))


def roll_back(calls: Calls, model: str, *, author: str = "") -> CallSteps[Model]:
    """Let the version before the active one score again."""
    request = admin_pb2.RollBackRequest(model=model, author=author)
    return (yield from _change(calls, "RollBack", request, admin_pb2.RollBackResponse))


def shadow(calls: Calls, model: str, version: str, *, author: str = "") -> CallSteps[Model]:
    """Score with a second version too, without acting on it; an empty version ends that."""
    request = admin_pb2.SetShadowRequest(model=model, version=version, author=author)
    return (yield from _change(calls, "SetShadow", request, admin_pb2.SetShadowResponse))


def policy(calls: Calls, model: str) -> CallSteps[PolicyState]:
    """How the gate of a model decides, and how it came to that."""
    request = admin_pb2.GetPolicyRequest(model=model)
    answer = yield from calls.unary(_ADMIN + "GetPolicy", request, admin_pb2.GetPolicyResponse)
    return read_policy_state(answer)


def set_policy(
    calls: Calls, model: str, policy: Policy, *, author: str = "", comment: str = ""
) -> CallSteps[EffectivePolicy]:
    """Override parts of the gate that the bundle carries; `Policy()` goes back to the bundle's."""
    request = admin_pb2.SetPolicyRequest(model=model, policy=policy_message(policy), author=author, comment=comment)
    answer = yield from calls.unary(_ADMIN + "SetPolicy", request, admin_pb2.SetPolicyResponse, is_repeatable=False)
    return EffectivePolicy(read_policy(answer.effective), answer.is_certified)


def dry_run_policy(
    calls: Calls, model: str, policy: Policy, *, since: Time | None = None, until: Time | None = None
) -> CallSteps[DryRun]:
    """What a policy would have decided on the stored points of the active version; default: of the last day."""
    request = admin_pb2.DryRunPolicyRequest(
        model=model, policy=policy_message(policy), since=as_timestamp(since), until=as_timestamp(until)
    )
    answer = yield from calls.unary(_ADMIN + "DryRunPolicy", request, admin_pb2.DryRunPolicyResponse)
    return DryRun(read_counts(answer.before), read_counts(answer.after))


def _change(calls: Calls, method: str, request: Message, answer: Any) -> CallSteps[Model]:
    reply = yield from calls.unary(_ADMIN + method, request, answer, is_repeatable=False)
    return read_model(reply.model)
