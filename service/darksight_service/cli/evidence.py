"""`darksight evidence`: the drift evidence of the active version of a model."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from darksight_service.cli.connection import CONNECTION, CommentedChange, ModelName
from darksight_service.cli.console import print_result
from darksight_service.cli.options import command_group

__all__ = ["evidence", "reset"]

evidence = command_group("evidence", "Restart the drift evidence of a model.")


@evidence.command
def reset(
    model: ModelName,
    /,
    *,
    change: Annotated[CommentedChange, Parameter(name="*", group=CONNECTION)] = CommentedChange(),
) -> None:
    """Restart the drift evidence of the active version, after its cause was removed.

    Evidence is about all rows since the version was deployed or its outlier rule changed. Each restart has a
    false-alarm probability of its own.
    """
    with change.connect() as client:
        version = client.reset_evidence(model, **change.entry())
    text = f"model {model}: the drift evidence of version {version[:12]} starts again"
    print_result({"model": model, "version": version}, text, json=change.json)
