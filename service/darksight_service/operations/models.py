"""AdminService: models, versions and policies."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any

from darksight_client.stubs.darksight.v1 import admin_pb2

from darksight_core.errors import DarkSightError
from darksight_core.gate.gate import Gate
from darksight_service.control.changes import Control, with_threshold
from darksight_service.control.state import ModelState, PolicyOverride
from darksight_service.errors import ForbiddenError
from darksight_service.operations.operation import Call, Service, operation
from darksight_service.operations.timestamps import optional_milliseconds, timestamp

__all__ = [
    "ADMIN",
    "activate_version",
    "deploy_bundle",
    "dry_run_policy",
    "get_model",
    "get_policy",
    "list_models",
    "reset_evidence",
    "roll_back",
    "set_policy",
    "set_shadow",
]

ADMIN = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]

_DAY_MS = 86_400_000
_MAX_HISTORY = 100


@operation(ADMIN, "read", "store", "GET /v1/models", lists_models=True)
def list_models(service: Service, request: admin_pb2.ListModelsRequest, call: Call) -> admin_pb2.ListModelsResponse:
    """List all models."""
    found = sorted(service.control.models().items())
    models = [_model(service.control, name, state) for name, state in found if call.caller.may_use(name)]
    return admin_pb2.ListModelsResponse(models=models)


@operation(ADMIN, "read", "store", "GET /v1/models/{model}")
def get_model(service: Service, request: admin_pb2.GetModelRequest, call: Call) -> admin_pb2.GetModelResponse:
    """Show one model."""
    return admin_pb2.GetModelResponse(model=_named_model(service, request.model))


@operation(ADMIN, "admin", "store", "POST /v1/models/{model}/versions")
def deploy_bundle(
    service: Service, request: admin_pb2.DeployBundleRequest, call: Call
) -> admin_pb2.DeployBundleResponse:
    """Deploy a bundle of the bundle directory as a version."""
    caller = call.caller
    if caller.models is not None:
        _check_folder(request)
    version = service.control.on_behalf_of(caller.name).deploy(
        request.model, request.path, activate=request.activate, author=request.author
    )
    return admin_pb2.DeployBundleResponse(model=_named_model(service, request.model), version=version)


@operation(ADMIN, "admin", "store", "POST /v1/models/{model}/activate")
def activate_version(
    service: Service, request: admin_pb2.ActivateVersionRequest, call: Call
) -> admin_pb2.ActivateVersionResponse:
    """Make a version active."""
    control = service.control.on_behalf_of(call.caller.name)
    control.activate(request.model, request.version, author=request.author)
    return admin_pb2.ActivateVersionResponse(model=_named_model(service, request.model))


@operation(ADMIN, "admin", "store", "POST /v1/models/{model}/rollback")
def roll_back(service: Service, request: admin_pb2.RollBackRequest, call: Call) -> admin_pb2.RollBackResponse:
    """Make the previously active version active again."""
    service.control.on_behalf_of(call.caller.name).roll_back(request.model, author=request.author)
    return admin_pb2.RollBackResponse(model=_named_model(service, request.model))


@operation(ADMIN, "admin", "store", "POST /v1/models/{model}/shadow")
def set_shadow(service: Service, request: admin_pb2.SetShadowRequest, call: Call) -> admin_pb2.SetShadowResponse:
    """Score all traffic with a second version as well."""
    service.control.on_behalf_of(call.caller.name).shadow(request.model, request.version, author=request.author)
    return admin_pb2.SetShadowResponse(model=_named_model(service, request.model))


@operation(ADMIN, "read", "store", "GET /v1/models/{model}/policy")
def get_policy(service: Service, request: admin_pb2.GetPolicyRequest, call: Call) -> admin_pb2.GetPolicyResponse:
    """Show the policy of the active version."""
    active = service.scoring.model(request.model)
    return admin_pb2.GetPolicyResponse(
        policy=_policy(service.control.model(request.model).versions[active.version].policy),
        effective=_effective(active.gate),
        reject_score=active.gate.reject_score or "",
        is_certified=active.is_certified,
        history=[
            admin_pb2.PolicyChange(
                changed_at=timestamp(change.changed_ms),
                author=change.authors,
                policy=_policy(PolicyOverride.from_dict(change.payload)),
                comment=change.comment,
                loosened=change.payload.get("loosened", ()),
            )
            for change in service.control.history(request.model)[:_MAX_HISTORY]
        ],
    )


@operation(ADMIN, "admin", "store", "PUT /v1/models/{model}/policy")
def set_policy(service: Service, request: admin_pb2.SetPolicyRequest, call: Call) -> admin_pb2.SetPolicyResponse:
    """Override parts of the gate of the active version."""
    active, looser = service.control.on_behalf_of(call.caller.name).set_policy(
        request.model, _override(request.policy), author=request.author, comment=request.comment
    )
    return admin_pb2.SetPolicyResponse(
        effective=_effective(active.gate), is_certified=active.is_certified, loosened=looser
    )


@operation(ADMIN, "read", "store", "POST /v1/models/{model}/policy/dry-run")
def dry_run_policy(
    service: Service, request: admin_pb2.DryRunPolicyRequest, call: Call
) -> admin_pb2.DryRunPolicyResponse:
    """Evaluate a policy on stored points."""
    until = optional_milliseconds(request, "until", int(time.time() * 1000) + 1)
    since = optional_milliseconds(request, "since", until - _DAY_MS)
    before, after = service.control.dry_run(request.model, _override(request.policy), since, until)
    return admin_pb2.DryRunPolicyResponse(before=_counts(before), after=_counts(after))


@operation(ADMIN, "admin", "store", "POST /v1/models/{model}/evidence/reset")
def reset_evidence(
    service: Service, request: admin_pb2.ResetEvidenceRequest, call: Call
) -> admin_pb2.ResetEvidenceResponse:
    """Restart the drift evidence of the active version."""
    control = service.control.on_behalf_of(call.caller.name)
    version = control.reset_evidence(request.model, author=request.author, comment=request.comment)
    return admin_pb2.ResetEvidenceResponse(version=version)


def _named_model(service: Service, name: str) -> admin_pb2.Model:
    return _model(service.control, name, service.control.model(name))


def _model(control: Control, name: str, state: ModelState) -> admin_pb2.Model:
    return admin_pb2.Model(
        name=name,
        active_version=state.active,
        previous_version=state.previous[-1] if state.previous else "",
        shadow_version=state.shadow,
        versions=_versions(control, name, state),
    )


def _versions(control: Control, name: str, state: ModelState) -> Iterable[admin_pb2.Version]:
    for version, deployment in state.versions.items():
        found = admin_pb2.Version(version=version, path=deployment.path, deployed_at=timestamp(deployment.deployed_ms))
        try:
            bundle = control.facts(name, version)
        except DarkSightError:
            # The file is missing or damaged. The version is still listed; activating it reports the error.
            yield found
            continue
        found.class_names.extend(bundle.class_names)
        found.calibration_rows = bundle.calibration_rows
        yield found


def _check_folder(request: admin_pb2.DeployBundleRequest) -> None:
    """A caller who may use some models only deploys files of theirs, and does not learn which others there are."""
    parts = PurePosixPath(request.path).parts
    if len(parts) < 2 or parts[0] != request.model or ".." in parts:
        raise ForbiddenError(
            f"path: this caller may deploy files of the folder {request.model[:100]!r} of the bundle directory only",
            kind="forbidden",
            field="path",
        )


def _override(policy: admin_pb2.Policy) -> PolicyOverride:
    return PolicyOverride(
        alpha=policy.alpha if policy.HasField("alpha") else None,
        threshold=policy.threshold if policy.HasField("threshold") else None,
        fail_open=policy.fail_open if policy.HasField("fail_open") else None,
        metric_tags=tuple(policy.metric_tags),
        log_odds=policy.log_odds if policy.HasField("log_odds") else None,
    )


def _policy(override: PolicyOverride) -> admin_pb2.Policy:
    return admin_pb2.Policy(
        alpha=override.alpha,
        threshold=override.threshold,
        fail_open=override.fail_open,  # type: ignore[arg-type]  # None is "not set", which the types of protoc 25 omit
        metric_tags=override.metric_tags,
        log_odds=override.log_odds,
    )


def _effective(gate: Gate) -> admin_pb2.Policy:
    override = PolicyOverride(0.0 if gate.outlier is None else gate.outlier.alpha, fail_open=gate.fail_open)
    return _policy(override if gate.reject_score is None else with_threshold(override, gate, gate.threshold))


def _counts(counts: Any) -> admin_pb2.DecisionCounts:
    return admin_pb2.DecisionCounts(
        **{field.name: getattr(counts, field.name) for field in admin_pb2.DecisionCounts.DESCRIPTOR.fields}
    )
