"""The two dashboards as code: python -m deploy.grafana.dashboards writes dashboards/*.json.

They are built with grafana-foundation-sdk. Panels use the recording rules where there is one, so that a panel agrees
with the alerts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DashboardLink,
    DatasourceVariable,
    QueryVariable,
    Row,
    TextBoxVariable,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.dashboard import DashboardLinkType, VariableOption, VariableRefresh, VariableSort

from deploy.grafana import model, service
from deploy.grafana.panels import SOURCE

__all__ = ["DASHBOARDS", "FOLDER", "dashboard_files", "queries", "write"]

FOLDER = Path(__file__).with_name("dashboards")
_TITLES = {"darksight-model": "DarkSight: model health", "darksight-service": "DarkSight: service health"}
_EXPLORER = "http://localhost:8082"
_POINTS = "${explorer}/models/${model}"


def _variable(name: str, query: str) -> QueryVariable:
    built = QueryVariable(name).query(query).datasource(SOURCE).refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
    built = built.sort(VariableSort.ALPHABETICAL_ASC).multi(False)
    if name == "model":
        return built.include_all(False)
    return built.include_all(True).all_value(".*").current(VariableOption(text="All", value="$__all"))


def _dashboard(
    uid: str, variables: Mapping[str, str], panels: Sequence[Row | Builder[models.Panel]]
) -> models.Dashboard:
    (other,) = _TITLES.keys() - {uid}
    is_model = "model" in variables
    built = Dashboard(_TITLES[uid]).uid(uid).tags(["darksight"]).readonly().refresh("30s").time("now-6h", "now")
    built.with_variable(DatasourceVariable("datasource").label("Data source").type("prometheus"))
    for name, query in variables.items():
        built.with_variable(_variable(name, query))
    built.with_variable(TextBoxVariable("explorer").default_value(_EXPLORER))
    link = DashboardLink(_TITLES[other]).type(DashboardLinkType.LINK).url(f"/d/{other}").keep_time(True)
    built.link(link.icon("dashboard"))
    link = DashboardLink("Explorer").type(DashboardLinkType.LINK).url(_POINTS if is_model else "${explorer}")
    built.link(link.icon("external link").target_blank(True))
    for panel in panels:
        built = built.with_row(panel) if isinstance(panel, Row) else built.with_panel(panel)
    dashboard = built.build()
    for number, each in enumerate(dashboard.panels or (), 1):
        each.id_val = number
        if is_model and isinstance(each, models.Panel) and each.targets:
            link = DashboardLink("Points in the explorer").type(DashboardLinkType.LINK).url(_POINTS)
            each.links = [link.target_blank(True).build()]
    return dashboard


DASHBOARDS = (
    _dashboard("darksight-model", model.VARIABLES, model.PANELS),
    _dashboard("darksight-service", service.VARIABLES, service.PANELS),
)


def queries(panel: models.Panel | models.RowPanel) -> dict[str, str]:
    """PromQL of a panel, by legend; none of a row or a text."""
    targets = panel.targets or () if isinstance(panel, models.Panel) else ()
    return {target.legend_format: target.expr for target in targets}


def dashboard_files() -> dict[Path, str]:
    """Contents of each file."""
    return {FOLDER / f"{each.uid}.json": json.dumps(each, cls=JSONEncoder, indent=2) + "\n" for each in DASHBOARDS}


def write() -> None:
    """Write the files."""
    FOLDER.mkdir(exist_ok=True)
    for path, text in dashboard_files().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
