"""Manifests made from other files: python -m deploy.kubernetes.generate writes them.

kustomize reads nothing outside its own folder, so the Prometheus rules and the dashboards are copied into manifests.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from deploy.grafana.dashboards import dashboard_files

__all__ = ["manifest_files", "write"]

HERE = Path(__file__).parent
_NOTE = "# Made by python -m deploy.kubernetes.generate; do not edit.\n"


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def _dump(manifest: dict[str, Any]) -> str:
    return _NOTE + yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, width=200, allow_unicode=True)


def _rules() -> dict[str, Any]:
    groups = []
    for path in sorted((HERE.parent / "prometheus" / "rules").glob("*.yml")):
        groups += yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "darksight"},
        "spec": {"groups": groups},
    }


def _dashboards() -> dict[str, Any]:
    # The label by which the sidecar of Grafana's chart finds dashboards.
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "darksight-dashboards", "labels": {"grafana_dashboard": "1"}},
        "data": {path.name: text for path, text in dashboard_files().items()},
    }


def manifest_files() -> dict[Path, str]:
    """What each file must hold."""
    return {HERE / "prometheusrule.yaml": _dump(_rules()), HERE / "dashboards.yaml": _dump(_dashboards())}


def write() -> None:
    """Write the files."""
    for path, text in manifest_files().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
