"""Pages of the reference, from the code that they describe."""

from __future__ import annotations

import inspect
import io
from collections.abc import Iterator, Sequence
from unittest.mock import MagicMock

import darksight_client
from cyclopts import App
from darksight_service.cli.app import COMMANDS, build_app
from darksight_service.errors import STATUSES
from darksight_service.http.api.openapi import openapi_document
from darksight_service.http.explorer.api import drift, gate, map, models, points, review
from darksight_service.metrics.catalogue import METRICS
from darksight_service.settings import PassiveModel, Settings
from rich.console import Console

import darksight_core
from darksight_core.errors import DarkSightError
from darksight_core.rows.schema import SCHEMA
from docs.generate.markdown import join, table

__all__ = ["columns", "command_line", "errors", "http", "metrics", "python", "settings"]

_WIDTH = 100


def _summary(thing: object) -> str:
    """First paragraph of a docstring, on one line."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def command_line() -> str:
    """Help of every command, as `--help` prints it."""
    parts = [
        "# Command line",
        "Results go to stdout, as text or with `--json` as JSON; progress and logs go to stderr. The exit status is 0 "
        "for success, 2 for bad usage or input, and 130 for an interrupt. `calibrate` ends with 3 if the labels do not "
        "support the promise. In a checkout, `./dev run` stands for `darksight`.",
    ]
    for heading, commands in COMMANDS.items():
        parts.append(f"## {heading}")
        for name in commands:
            app = build_app(name)
            for command in _commands(app, (name,)):
                parts.append(f"{'###' if len(command) == 1 else '####'} darksight {' '.join(command)}")
                parts.append(f"```text\n{_help(app, command)}\n```")
    return join(parts)


def _commands(app: App, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """A command and those below it."""
    yield path
    _, chain, _ = app.parse_commands(path)
    for name in chain[-1]:
        if not name.startswith("-"):
            yield from _commands(app, (*path, name))


def _help(app: App, command: Sequence[str]) -> str:
    text = io.StringIO()
    app.help_print(list(command), console=Console(file=text, width=_WIDTH, color_system=None, legacy_windows=False))
    return "\n".join(line.rstrip() for line in text.getvalue().strip("\n").splitlines())


def settings() -> str:
    """Every setting with its default."""
    rows = []
    for name, field in Settings.model_fields.items():
        default = "" if field.default in (None, {}) else str(field.default)
        shown = f"`{default.lower() if isinstance(field.default, bool) else default}`" if default else ""
        rows.append((f"`{name}`", f"`DARKSIGHT_{name.upper()}`", shown, field.description))
    passive = [(f"`{name}`", field.description) for name, field in PassiveModel.model_fields.items()]
    return join(
        [
            "# Settings",
            "Options of `darksight serve` override `DARKSIGHT_<NAME>` in the environment, which overrides a TOML file "
            "(`--config` or `DARKSIGHT_CONFIG`), which overrides these defaults. An unknown name is an error. "
            "`DARKSIGHT_<NAME>_FILE` names a file that holds the value; child processes get the name of the file and "
            "not the value, and a new connection to PostgreSQL reads the file again. An empty variable counts as not "
            "set. Variables that Kubernetes sets for services are ignored.",
            table(("name in TOML", "variable", "default", "what it sets"), rows),
            "## passive",
            "A table for each model, `[passive.MODEL]`, or one JSON object in `DARKSIGHT_PASSIVE`; "
            "[Listen to a model server](../how-to/passive.md) shows both.",
            table(("name in TOML", "what it sets"), passive),
        ]
    )


def metrics() -> str:
    """Every metric."""
    rows = [(f"`{each.name}`", each.kind, ", ".join(each.labels) or "-", each.help, each.why) for each in METRICS]
    return join(
        [
            "# Metrics",
            "`/metrics` on the HTTP port, in the text format of Prometheus or as OpenMetrics. All series exist with "
            "value 0 before the first row. Counters are sums over all workers of a replica and survive restarts of "
            "workers. The label `version` has the first 12 digits of the bundle's SHA-256. Classes beyond the first "
            "100, and versions beyond the setting `max_models`, are counted as `_other`. In the OpenMetrics format, "
            "outliers have an exemplar with the `prediction_id` of a recent outlier, cut to 64 characters, and its "
            "`trace_id`, if the caller named a trace: at most one per second, none of a shadow "
            "version, and only under the outlier rule in force.",
            table(("metric", "type", "labels", "what", "why"), rows),
            "The page also has the standard `process_*` metrics (CPU time, memory, start time, open files), with the "
            "label `process`: `supervisor`, `worker-0` and so on, `storage`, `explorer`.",
        ]
    )


def columns() -> str:
    """Every column of a scored row, and where it is."""
    kinds = {"<f8": "float64", "<f4": "float32", "<i4": "int32", "<i2": "int16", "i1": "int8", "?": "bool"}
    rows = [
        (
            ", ".join(f"`{part}`" for part in ((column.name,) if column.width == 1 else column.parts)),
            f"{column.description[0].upper()}{column.description[1:]}",
            kinds[column.dtype],
            ", ".join(
                place
                for place, has_it in (
                    ("response", column.response),
                    ("score files", column.file),
                    (f"SQL ({kinds.get(column.stored)})", bool(column.stored)),
                    ("tables of points", column.listed),
                    ("map", column.browser),
                )
                if has_it
            ),
        )
        for column in SCHEMA
    ]
    return join(
        [
            "# Columns of a scored row",
            "From `darksight_core/rows/schema.py`. Score files and scored tables also have the id, decision and reason "
            "by name, `prediction_set` and the tags. A service sends the columns of the response and `set_size`, and "
            "`top` and `predicted` follow from the probabilities; files and tables that it scored do not have the "
            "others. A score that a row lacks is NaN, and NULL in SQL.",
            table(("column", "what", "type", "where"), rows),
        ]
    )


def errors() -> str:
    """Every error of core and service with its statuses, and every exception of the client."""
    rows = []
    for kind in _subclasses(DarkSightError):
        grpc, status = next((STATUSES[each] for each in kind.__mro__ if each in STATUSES), ("INTERNAL", 500))
        rows.append((f"`{kind.code}`", f"`{kind.__name__}`", grpc, status, _summary(kind)))
    client = [
        (f"`{name}`", _summary(kind))
        for name, kind in sorted(vars(darksight_client).items())
        if isinstance(kind, type) and issubclass(kind, darksight_client.DarkSightClientError)
    ]
    return join(
        [
            "# Errors",
            "Every error has a stable `code` for programs, a message for people, and `details` with the same facts. "
            "Commands print the message and end with status 2. The service answers with the gRPC or HTTP status; of an "
            "internal error only a request id leaves the process.",
            "## In Python, on the command line and from the service",
            table(("code", "class", "gRPC", "HTTP", "meaning"), sorted(rows)),
            "## Raised by the client",
            table(("class", "meaning"), client),
        ]
    )


def _subclasses(kind: type[DarkSightError]) -> Iterator[type[DarkSightError]]:
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)


def http() -> str:
    """Pages of the service, the HTTP API, and the API of the explorer."""
    found = [each for module in (models, map, gate, drift, review, points) for each in module.endpoints(MagicMock())]
    rows = [
        (
            each.method,
            f"`{each.path}`",
            f"`{each.scope}`",
            ", ".join(f"`{name}`" for name in each.input.model_fields) or "-",
        )
        for each in found
    ]
    calls = [
        (verb.upper(), f"`{path}`", f"`{each['operationId'].removesuffix('OfVersion')}`", each["summary"])
        for path, verbs in openapi_document()["paths"].items()
        for verb, each in verbs.items()
    ]
    pages = [
        ("`/metrics`", "metrics for Prometheus"),
        ("`/v2/health/live`", "200 while the process runs"),
        ("`/v2/health/ready`", "200 while every worker takes calls for every model, otherwise 503"),
        ("`/`", "name, version, pages and the address of the explorer, as JSON"),
    ]
    return join(
        [
            "# HTTP",
            "## Metrics and health",
            "On `http_port` (8080). With the setting `metrics_token`, `/metrics` needs a token of the scope `metrics`.",
            table(("path", "answer"), pages),
            "## The HTTP API",
            "On `api_port`, which has no default; [Call the service over HTTP](../how-to/http.md) shows how to use it. "
            "The document `/openapi.json` has the messages, and `/docs` is a page to try calls.",
            table(("method", "path", "operation", "answer"), calls),
            "## The API of the explorer",
            'On `explorer_port` (8082). With tokens, a caller logs in by `POST /api/login` with `{"token": ...}` and '
            "uses the cookie that it gets; `POST` requests also need the header that the explorer's pages send. Inputs "
            "are parameters of the URL (GET) or a JSON body (POST). The paths belong to the explorer and may change "
            "with a release; programs should use gRPC or the HTTP API.",
            table(("method", "path", "scope", "input"), rows),
        ]
    )


# By name, because their modules import packages that are not installed here.
ADAPTERS = (
    "asgi.GateMiddleware",
    "remote.RemoteGate",
    "remote.Decided",
    "mlflow.log_bundle",
    "mlflow.log_model",
    "sklearn.AbstainingClassifier",
    "transformers.pipeline_probs",
    "logprobs.logprob_rows",
)


def python() -> str:
    """Directives for mkdocstrings: the public names of core and client."""
    parts = ["# Python API"]
    for package in (darksight_core, darksight_client):
        parts += [f"## {package.__name__}", _summary(package)]
        for name in package.__all__:
            thing = getattr(package, name)
            if not name.startswith("__"):
                place = f"{thing.__module__}.{thing.__qualname__}" if hasattr(thing, "__qualname__") else None
                options = "heading_level: 3"
                if thing is darksight_client.Client:
                    options += "\n      inherited_members: true"
                parts.append(f"::: {place or f'{package.__name__}.{name}'}\n    options:\n      {options}")
    parts += ["## darksight_client.adapters", "For [other frameworks](../how-to/frameworks.md)."]
    for place in ADAPTERS:
        parts.append(f"::: darksight_client.adapters.{place}\n    options:\n      heading_level: 3")
    return join(parts)
