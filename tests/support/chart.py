"""The Helm chart, rendered by helm where it is installed, else by the template engine of Go, which helm uses.

The engine is py-go-template: text/template with the functions of sprig. The chart uses nothing that helm adds to them
but `.Release`, `.Chart` and `.Values`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import go_template
import yaml

__all__ = ["CHART", "render_chart"]

CHART = Path(__file__).parents[2] / "deploy" / "helm"


def render_chart(values: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """All manifests of a release `darksight`; jsonschema.ValidationError for values that the chart refuses.

    Parameters
    ----------
    values
        Values over those of values.yaml; without any, nothing is validated.
    """
    merged = _merge(yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")), values or {})
    if values is not None:
        # Takes 2 CPU seconds: it parses the grammars of all formats.
        import jsonschema

        jsonschema.validate(merged, json.loads((CHART / "values.schema.json").read_text(encoding="utf-8")))
    helm = shutil.which("helm")
    texts = [_helm(helm, merged)] if helm else _engine(merged)
    return [each for text in texts for each in yaml.safe_load_all(text) if each]


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    both = {name: _merge(base[name], over[name]) for name in base.keys() & over if isinstance(base[name], dict)}
    return {**base, **over, **both}


def _helm(helm: str, values: Mapping[str, Any]) -> str:
    command = [helm, "template", "darksight", str(CHART), "--namespace", "darksight", "--values", "-"]
    return subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, check=True).stdout


def _engine(values: Mapping[str, Any]) -> list[str]:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    context = {
        "Values": values,
        "Chart": {"Name": chart["name"], "Version": chart["version"], "AppVersion": str(chart["appVersion"])},
        "Release": {"Name": "darksight", "Namespace": "darksight", "Service": "Helm", "Revision": 1},
    }
    named = "".join(path.read_text(encoding="utf-8") for path in sorted(CHART.glob("templates/*.tpl")))
    texts = []
    with tempfile.TemporaryDirectory() as folder:
        for path in sorted(CHART.glob("templates/*.yaml")):
            # The engine reads one file, and helm all of them: named templates are put before each.
            joined = Path(folder, path.name)
            joined.write_text(named + path.read_text(encoding="utf-8"), encoding="utf-8")
            texts.append(go_template.render(joined, context).decode())
    return texts
