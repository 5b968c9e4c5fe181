"""Handlers of AdminService, except those for regions."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any

import grpc
from darksight_client.stubs.darksight.v1 import admin_pb2

from darksight_core.errors import DarkSightError
from darksight_core.gate.gate import Gate
from darksight_service.control.changes import Control
from darksight_service.control.state import ModelState, PolicyOverride
from darksight_service.errors import ForbiddenError
from darksight_service.grpc_api.callers import Callers
from darksight_service.grpc_api.regions import RegionCalls
from darksight_service.grpc_api.scoring import parse
from darksight_service.grpc_api.timestamps import milliseconds, timestamp
from darksight_service.scoring.service import ScoringService

__all__ = ["Admin"]

_DAY_MS = 86_400_000
_MAX_HISTORY = 100


class Admin:
    """Handlers of AdminService. Each method handles the RPC of its name.

    Parameters
    ----------
    control
        Makes the changes.
    monitor
        Knows the active models.
    callers
        Names the authors of changes.

    Attributes
    ----------
    regions
        Handlers for regions.
    """

    def __init__(self, control: Control, monitor: ScoringService, callers: Callers) -> None:
        self._control = control
        self._monitor = monitor
        self._callers = callers
        self.regions = RegionCalls(control.regions, lambda context: self._as_caller(context).regions)

    def list_models(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """ListModels."""
        parse(admin_pb2.ListModelsRequest, data)
        caller = self._callers.caller(context, "read")
        found = sorted(self._control.models().items())
        models = [self._model(name, state) for name, state in found if caller.may_use(name)]
        return admin_pb2.ListModelsResponse(models=models).SerializeToString()

    def get_model(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """GetModel."""
        request = parse(admin_pb2.GetModelRequest, data)
        return admin_pb2.GetModelResponse(model=self._named(request.model)).SerializeToString()

    def deploy_bundle(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """DeployBundle."""
        request = parse(admin_pb2.DeployBundleRequest, data)
        if self._callers.caller(context, "admin").models is not None:
            _check_folder(request)
        version = self._as_caller(context).deploy(
            request.model, request.path, activate=request.activate, author=request.author
        )
        return admin_pb2.DeployBundleResponse(model=self._named(request.model), version=version).SerializeToString()

    def activate_version(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """ActivateVersion."""
        request = parse(admin_pb2.ActivateVersionRequest, data)
        self._as_caller(context).activate(request.model, request.version, author=request.author)
        return admin_pb2.ActivateVersionResponse(model=self._named(request.model)).SerializeToString()

    def roll_back(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """RollBack."""
        request = parse(admin_pb2.RollBackRequest, data)
        self._as_caller(context).roll_back(request.model, author=request.author)
        return admin_pb2.RollBackResponse(model=self._named(request.model)).SerializeToString()

    def set_shadow(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """SetShadow."""
        request = parse(admin_pb2.SetShadowRequest, data)
        self._as_caller(context).shadow(request.model, request.version, author=request.author)
        return admin_pb2.SetShadowResponse(model=self._named(request.model)).SerializeToString()

    def get_policy(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """GetPolicy."""
        request = parse(admin_pb2.GetPolicyRequest, data)
        serving = self._monitor.model(request.model)
        override = self._control.model(request.model).versions[serving.version].policy
        response = admin_pb2.GetPolicyResponse(
            policy=_policy(override),
            effective=_effective(serving.gate),
            reject_score=serving.gate.reject_score or "",
            is_certified=serving.is_certified,
            history=[
                admin_pb2.PolicyChange(
                    changed_at=timestamp(change.changed_ms),
                    author=change.authors,
                    policy=_policy(PolicyOverride.from_dict(change.payload)),
                    comment=change.comment,
                )
                for change in self._control.history(request.model)[:_MAX_HISTORY]
            ],
        )
        return response.SerializeToString()

    def set_policy(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """SetPolicy."""
        request = parse(admin_pb2.SetPolicyRequest, data)
        serving = self._as_caller(context).set_policy(
            request.model, _override(request.policy), author=request.author, comment=request.comment
        )
        response = admin_pb2.SetPolicyResponse(effective=_effective(serving.gate), is_certified=serving.is_certified)
        return response.SerializeToString()

    def reset_evidence(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """ResetEvidence."""
        request = parse(admin_pb2.ResetEvidenceRequest, data)
        version = self._as_caller(context).reset_evidence(request.model, author=request.author, comment=request.comment)
        return admin_pb2.ResetEvidenceResponse(version=version).SerializeToString()

    def dry_run_policy(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """DryRunPolicy."""
        request = parse(admin_pb2.DryRunPolicyRequest, data)
        until = milliseconds(request.until, "until") if request.HasField("until") else int(time.time() * 1000) + 1
        since = milliseconds(request.since, "since") if request.HasField("since") else until - _DAY_MS
        before, after = self._control.dry_run(request.model, _override(request.policy), since, until)
        response = admin_pb2.DryRunPolicyResponse(before=_counts(before), after=_counts(after))
        return response.SerializeToString()

    def _as_caller(self, context: grpc.ServicerContext) -> Control:
        return self._control.on_behalf_of(self._callers.caller(context, "admin").name)

    def _named(self, name: str) -> admin_pb2.Model:
        return self._model(name, self._control.model(name))

    def _model(self, name: str, state: ModelState) -> admin_pb2.Model:
        return admin_pb2.Model(
            name=name,
            active_version=state.active,
            previous_version=state.previous[-1] if state.previous else "",
            shadow_version=state.shadow,
            versions=list(self._versions(name, state)),
        )

    def _versions(self, name: str, state: ModelState) -> Iterable[admin_pb2.Version]:
        for version, deployment in state.versions.items():
            found = admin_pb2.Version(
                version=version, path=deployment.path, deployed_at=timestamp(deployment.deployed_ms)
            )
            try:
                bundle = self._control.facts(name, version)
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
    )


def _policy(override: PolicyOverride) -> admin_pb2.Policy:
    return admin_pb2.Policy(
        alpha=override.alpha,
        threshold=override.threshold,
        fail_open=override.fail_open,  # type: ignore[arg-type]  # None is "not set", which the types of protoc 25 omit
        metric_tags=override.metric_tags,
    )


def _effective(gate: Gate) -> admin_pb2.Policy:
    return admin_pb2.Policy(
        alpha=0.0 if gate.outlier is None else gate.outlier.alpha,
        threshold=None if gate.reject_score is None else gate.threshold,
        fail_open=gate.fail_open,
    )


def _counts(counts: Any) -> admin_pb2.DecisionCounts:
    return admin_pb2.DecisionCounts(
        **{field.name: getattr(counts, field.name) for field in admin_pb2.DecisionCounts.DESCRIPTOR.fields}
    )
