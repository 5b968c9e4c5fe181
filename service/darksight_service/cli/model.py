"""`darksight model`: the models of a running service and their versions."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from darksight_client import Model

from darksight_core.errors import ConfigError
from darksight_service.cli.connection import CONNECTION, Change, ModelName, Query, QueryOptions
from darksight_service.cli.console import print_result, print_table
from darksight_service.cli.options import command_group

__all__ = ["activate", "deploy", "list_models", "model", "rollback", "shadow"]

_SHORT = 12

_Version = Annotated[str, Parameter(help="Version (sha256) of a bundle, or its first 12 digits.")]
_Change = Annotated[Change, Parameter(name="*", group=CONNECTION)]

model = command_group(
    "model",
    "List, deploy, activate and roll back the models of a service.\n\n"
    "A version of a model is a bundle. The active version scores and decides.",
)


@model.command(name="list")
def list_models(name: ModelName = "", /, *, query: QueryOptions = Query()) -> None:
    """List models and their versions.

    Parameters
    ----------
    name
        Name of one model. Default: all models.
    """
    with query.connect() as client:
        models = (client.model(name),) if name else client.models()
    rows = [
        (each.name, v.version[:_SHORT], _role(each, v.version), v.calibration_rows, v.deployed_at, v.path)
        for each in models
        for v in each.versions
    ]
    header = ("model", "version", "role", "calibration rows", "deployed", "path")
    print_result(models, lambda: print_table(rows, header), json=query.json)


@model.command
def deploy(name: ModelName, path: str, /, *, activate: bool = False, change: _Change = Change()) -> None:
    """Add a bundle as a version of a model.

    The first version of a model is activated at once.

    Parameters
    ----------
    path
        Path of the bundle, relative to the bundle directory of the service.
    activate
        Activate the version.
    """
    with change.connect() as client:
        changed = client.deploy(name, path, activate=activate, **change.entry())
    _report(changed, change)


@model.command
def activate(name: ModelName, version: _Version, /, *, change: _Change = Change()) -> None:
    """Activate a deployed version."""
    with change.connect() as client:
        changed = client.activate(name, version, **change.entry())
    _report(changed, change)


@model.command
def rollback(name: ModelName, /, *, change: _Change = Change()) -> None:
    """Activate the previously active version."""
    with change.connect() as client:
        changed = client.roll_back(name, **change.entry())
    _report(changed, change)


@model.command
def shadow(name: ModelName, version: _Version = "", /, *, off: bool = False, change: _Change = Change()) -> None:
    """Score with a second version as well, without effect on decisions.

    Parameters
    ----------
    off
        Remove the shadow version.
    """
    if bool(version) == off:
        raise ConfigError("give either a version or --off")
    with change.connect() as client:
        changed = client.shadow(name, version, **change.entry())
    _report(changed, change)


def _role(found: Model, version: str) -> str:
    """What a version of a model does."""
    roles = {found.previous_version: "previous", found.shadow_version: "shadow", found.active_version: "active"}
    return roles.get(version, "-")


def _report(changed: Model, change: Change) -> None:
    """Print a model after a change."""
    versions = (changed.active_version, changed.previous_version, changed.shadow_version)
    active, previous, shadow = (version[:_SHORT] or "none" for version in versions)
    text = f"model {changed.name}: active {active}, previous {previous}, shadow {shadow}"
    print_result(changed, text, json=change.json)
