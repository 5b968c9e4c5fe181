"""`darksight policy`: the gate policy of the active version of a model."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter
from darksight_client import Client, DecisionCounts, Policy

from darksight_core.errors import ConfigError
from darksight_service.cli.connection import CONNECTION, CommentedChange, ModelName, Query, QueryOptions
from darksight_service.cli.console import print_json, print_result, print_table
from darksight_service.cli.options import command_group
from darksight_service.errors import RefusedError

__all__ = ["Override", "dry_run", "get", "policy", "set_policy"]

_DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Override:
    """Values that replace those of the bundle. Values that are not given stay as they are.

    Parameters
    ----------
    alpha
        False-alarm rate of the outlier rule; 0 disables the rule.
    threshold
        Rows are accepted if their reject score is at least this. For msp and learned it is a probability, such as 0.95;
        0 accepts all rows, as -inf does for other scores.
    fail_open
        Whether rows that cannot be scored are accepted.
    metric_tags
        Keys of tags whose segments are metrics, up to 4.
    reset
        Restore the values of the bundle that are not given.
    """

    alpha: float | None = None
    threshold: Annotated[float | None, Parameter(allow_leading_hyphen=True)] = None
    fail_open: Literal["true", "false"] | None = None
    metric_tags: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=())] = ()
    reset: bool = False

    def policy(self, client: Client, model: str) -> Policy:
        """The policy of a model with these values."""
        given = asdict(self)
        del given["reset"]
        if self.fail_open is not None:
            given["fail_open"] = self.fail_open == "true"
        given = {name: value for name, value in given.items() if value not in (None, ())}
        if "threshold" in given:
            given["log_odds"] = None
        if not (given or self.reset):
            raise ConfigError("give --alpha, --threshold, --fail-open, --metric-tags or --reset")
        return replace(Policy() if self.reset else client.policy(model).policy, **given)


_Override = Annotated[Override, Parameter(name="*", group=Group("Policy", sort_key=2))]

policy = command_group(
    "policy",
    "Show, evaluate and change the gate policy of a model.\n\n"
    "A policy replaces values of the bundle for the active version. Evaluate it with dry-run before you set it.",
)


@policy.command
def get(model: ModelName, /, *, query: QueryOptions = Query()) -> None:
    """Show the policy in force and its changes."""
    with query.connect() as client:
        found = client.policy(model)
    if query.json:
        print_json(_finite(asdict(found)))
        return
    _print_policy(found.effective, found.policy)
    print(f"\nThe threshold applies to: {found.reject_score or 'no score'}. {_certified(found.is_certified)}")
    for each in found.history:
        moment = "-" if each.changed_at is None else each.changed_at.isoformat(timespec="seconds")
        looser = f"  accepts more: {'; '.join(each.loosened)}" if each.loosened else ""
        print(f"  {moment}  {each.author or '-'}: {_policy_text(each.policy)}  {each.comment}{looser}")


@policy.command(name="set")
def set_policy(
    model: ModelName,
    /,
    *,
    override: _Override = Override(),
    change: Annotated[CommentedChange, Parameter(name="*", group=CONNECTION)] = CommentedChange(),
) -> None:
    """Change the policy of the active version.

    Without --reset it fails if another version was activated meanwhile, which may have got values of the first.
    """
    with change.connect() as client:
        before = "" if override.reset else client.model(model).active_version
        wanted = override.policy(client, model)
        found = client.set_policy(model, wanted, **change.entry())
        after = "" if override.reset else client.model(model).active_version
    if after != before:
        raise RefusedError(
            f"version {after[:12]} was activated while the policy was set, and may have got values of {before[:12]}; "
            f"see darksight policy get {model}, and set the policy again"
        )
    if change.json:
        facts = {"is_certified": found.is_certified, "loosened": found.loosened}
        print_json(_finite({"effective": asdict(found.policy), **facts}))
    else:
        _print_policy(found.policy, wanted)
        print(f"\n{_certified(found.is_certified)}")
        if found.loosened:
            print(f"The gate accepts more rows than before: {'; '.join(found.loosened)}.")


@policy.command
def dry_run(
    model: ModelName, /, *, override: _Override = Override(), days: float = 1.0, query: QueryOptions = Query()
) -> None:
    """Evaluate a policy on stored points, without changing anything.

    Parameters
    ----------
    days
        Use points received within this many days.
    """
    with query.connect() as client:
        wanted = override.policy(client, model)
        found = client.dry_run_policy(model, wanted, since=time.time() - days * _DAY_SECONDS)
    both = found.before, found.after
    rows = [(name.replace("_", " "), *(getattr(each, name) for each in both)) for name in DecisionCounts.__slots__]
    rows.append(("accuracy of accepted", *map(_accepted_accuracy, both)))
    header = ("points", "as decided", "with the policy")
    print_result(found, lambda: print_table(rows, header), json=query.json)


def _print_policy(effective: Policy, override: Policy) -> None:
    rows = [
        (name, getattr(effective, name), "bundle" if getattr(override, name) is None else "policy")
        for name in ("alpha", "threshold", "fail_open")
    ]
    if override.metric_tags:
        rows.append(("metric_tags", " ".join(override.metric_tags), "policy"))
    print_table(rows, ("value", "in force", "from"))


def _policy_text(policy: Policy) -> str:
    """The values that a policy sets."""
    given = {name: value for name, value in asdict(policy).items() if value not in (None, ()) and name != "log_odds"}
    return ", ".join(f"{name} {value}" for name, value in given.items()) or "as in the bundle"


def _certified(is_certified: bool) -> str:
    covers = "covers" if is_certified else "does not cover"
    return f"The certificate of the bundle {covers} this policy."


def _accepted_accuracy(counts: DecisionCounts) -> float | None:
    return counts.accepted_correct / counts.accepted_labelled if counts.accepted_labelled else None


def _finite(value: Any) -> Any:
    """The same with infinite numbers as text, since JSON has none."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return [_finite(each) for each in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value
