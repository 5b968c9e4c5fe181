"""Files for deployment: they parse, they are fresh, they agree with the code and with the schemas of their tools."""

from __future__ import annotations

import ast
import configparser
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from darksight_service.metrics.catalogue import METRICS, sample_names
from darksight_service.settings import Settings
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from darksight_core.rows.version import __version__
from deploy.grafana.dashboards import DASHBOARDS, dashboard_files, queries
from deploy.helm.generate import manifest_files
from tests.support.chart import CHART, render_chart
from tests.support.replicas import REPLICAS, SETTINGS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
CUSTOM = {"PrometheusRule", "ServiceMonitor"}
KUBERNETES = "1.32"
# Values that fit the chart into a cluster, all of them.
PLACED: dict[str, Any] = {
    "image": {"pullSecrets": ["a", "b"]},
    "nodeSelector": {"pool": "scoring"},
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "arch", "operator": "In", "values": ["amd64"]}]}]
            }
        }
    },
    "podLabels": {"team.example.com/cost": "7"},
    "podAnnotations": {"sidecar.istio.io/inject": "false"},
    "monitoring": {"labels": {"release": "prometheus"}},
    "settings": {"http_tls": True, "api_port": 8083},
    "fit": {"enabled": True, "nodeSelector": {"pool": "gpu"}},
}
# What the supervisor gives workers and storage worker beyond the grace.
KEEPER_SECONDS = 20


def name_of(path: Path) -> str:
    """Path within deploy."""
    return str(path.relative_to(DEPLOY))


def manifests() -> list[dict[str, Any]]:
    """All manifests of the chart, with a fit in two pods."""
    return render_chart({"fit": {"enabled": True, "pods": 2}})


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_file_parses(path: Path) -> None:
    """YAML, JSON, Python and unit files are what their names say; others are text or pictures."""
    if path.suffix == ".png":
        assert path.read_bytes().startswith(b"\x89PNG")
        return
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n")
    if path.parent == CHART / "templates":
        # Not YAML before it is rendered.
        return
    if path.suffix in (".yaml", ".yml"):
        assert list(yaml.safe_load_all(text))
    elif path.suffix == ".json":
        assert json.loads(text)
    elif path.suffix == ".py":
        ast.parse(text)
    elif path.suffix == ".service":
        parser = configparser.RawConfigParser(strict=False)
        parser.optionxform = str  # type: ignore[assignment,method-assign] # names of systemd have capitals
        parser.read_string(text)
        assert parser["Service"]["ExecStart"].endswith("darksight serve --config /etc/darksight/settings.toml")


@pytest.mark.parametrize(
    ("path", "text"),
    [*dashboard_files().items(), *manifest_files().items()],
    ids=lambda value: getattr(value, "name", ""),
)
def test_generated_files_are_fresh(path: Path, text: str) -> None:
    """Run python -m deploy.grafana.dashboards and python -m deploy.helm.generate after a change."""
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("path", dashboard_files(), ids=lambda path: path.stem)
def test_dashboards_follow_the_schema_of_grafana(path: Path) -> None:
    """The models of grafana-foundation-sdk read each file and lose nothing."""
    content = json.loads(path.read_text(encoding="utf-8"))

    again = json.loads(json.dumps(Dashboard.from_json(content), cls=JSONEncoder))

    assert again == content


def all_queries() -> list[str]:
    """PromQL of all panels."""
    return [query for board in DASHBOARDS for panel in board.panels or () for query in queries(panel).values()]


def test_dashboards_use_series_that_exist() -> None:
    """Every name in a panel is exported by the service or recorded by a rule."""
    rules = [
        yaml.safe_load(path.read_text(encoding="utf-8")) for path in (DEPLOY / "prometheus" / "rules").glob("*.yml")
    ]
    recorded = {rule.get("record") for file in rules for group in file["groups"] for rule in group["rules"]}
    used = set()
    for query in (*all_queries(), *(str(each.query) for board in DASHBOARDS for each in board.templating.list_val)):
        used |= set(re.findall(r"\b[a-z]+:darksight_[a-z0-9_:]+|(?<![:\w])darksight_\w+", query))

    assert used - recorded - sample_names() == set()
    assert len(used) > 30


def test_dashboards_show_every_metric_or_a_rule_does() -> None:
    """A number that nobody looks at need not be counted."""
    shown = "".join(all_queries())
    shown += "".join(path.read_text(encoding="utf-8") for path in (DEPLOY / "prometheus" / "rules").glob("*.yml"))

    assert [metric.name for metric in METRICS if metric.name not in shown] == []


def test_a_flag_is_no_percentage() -> None:
    """Whether the accuracy is withheld is shown as yes or no beside the percentages."""
    text = (DEPLOY / "grafana" / "dashboards" / "darksight-model.json").read_text(encoding="utf-8")
    panels = json.loads(text)["panels"]
    config = next(panel for panel in panels if panel["title"].startswith("Accuracy now"))["fieldConfig"]

    flag = {"id": "unit", "value": "bool_yes_no"}
    assert config["overrides"] == [{"matcher": {"id": "byName", "options": "withheld"}, "properties": [flag]}]


@pytest.mark.parametrize("path", dashboard_files(), ids=lambda path: path.stem)
def test_panels_do_not_overlap_and_lead_to_the_explorer(path: Path) -> None:
    """Each place of the grid has one panel, and a model's panels link to its points."""
    dashboard = json.loads(path.read_text(encoding="utf-8"))

    cells = [
        (x, y)
        for panel in dashboard["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    links = [link["url"] for panel in dashboard["panels"] for link in panel.get("links", ())]
    asking = [panel for panel in dashboard["panels"] if "targets" in panel]
    assert links == (["${explorer}/models/${model}"] * len(asking) if dashboard["uid"] == "darksight-model" else [])


def test_settings_are_settings() -> None:
    """Every DARKSIGHT_ variable that a file sets is one that the service knows."""
    known = {f"DARKSIGHT_{name.upper()}" for name in Settings.model_fields} | {"DARKSIGHT_CONFIG"}
    known |= {f"{name}_FILE" for name in known}
    used = {
        name for path in FILES if path.suffix != ".png" for name in re.findall(r"DARKSIGHT_[A-Z_]+", path.read_text())
    }

    assert used - known == set()
    assert {"DARKSIGHT_DATABASE_URL_FILE", "DARKSIGHT_TLS_CERT", "DARKSIGHT_DATA_DIR"} <= used


def test_container_is_small_and_powerless() -> None:
    """The image that serves has no torch, runs as nobody in particular, and gets signals."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")

    assert len(re.findall(r"(?m)^FROM ", text)) == 2
    assert "ARG EXTRAS=service\n" in text
    assert re.search(r"(?m)^USER 10001", text)
    assert re.search(r"(?m)^HEALTHCHECK ", text)
    assert f"ARG VERSION={__version__}\n" in text
    for label in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{label}=" in text
    assert 'ENTRYPOINT ["darksight"]' in text
    assert "python -m darksight_core.runtime.compilation x86-64-v3 generic" in text
    for source in re.findall(r"(?m)^COPY (?!--from)(.+) \S+$", text):
        assert all((ROOT / name).exists() for name in source.split())


def test_script_builds_the_dockerfile() -> None:
    """Bash can read it, and it sets every argument of the Dockerfile."""
    script, dockerfile = DEPLOY / "build-image.sh", (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    text = script.read_text(encoding="utf-8")

    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    assert set(re.findall(r'--build-arg "(\w+)=', text)) == set(re.findall(r"(?m)^ARG (\w+)=", dockerfile))
    for option in ("--isolation chroot", "--file deploy/Dockerfile", "--ignorefile deploy/Dockerfile.dockerignore"):
        assert option in text


def test_compose_follows_its_schema() -> None:
    """The compose specification accepts the file."""
    schemas = pytest.importorskip("check_jsonschema.builtin_schemas", reason="check-jsonschema is not installed")

    schema = schemas.get_builtin_schema("vendor.compose-spec")
    assert [error.message for error in jsonschema.Draft7Validator(schema).iter_errors(COMPOSE)] == []


def test_compose_exposes_nothing_and_waits_for_health() -> None:
    """Ports are on loopback, what runs on has a health check, images have versions, and no secret is written down."""
    services = COMPOSE["services"]

    assert {"darksight", "postgres", "prometheus", "grafana", "alertmanager"} <= set(services)
    for name, service in services.items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        assert service["image"] in ("darksight", "darksight-fit") or re.search(r":v?\d", service["image"]), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / source).exists(), volume
        if service.get("restart") and name != "darksight":
            assert "healthcheck" in service, name
        for other, condition in service.get("depends_on", {}).items():
            runs_on = "restart" in services[other]
            assert condition["condition"] == ("service_healthy" if runs_on else "service_completed_successfully")
    # The others wait until it ends.
    assert "darksight demo --no-serve " in services["first-bundle"]["command"][0]
    assert not re.search(r"(?i)password: *\S", (DEPLOY / "compose.yaml").read_text(encoding="utf-8"))


def test_manifests_follow_the_schemas_of_kubernetes() -> None:
    """kubernetes-validate accepts all that are not of somebody's own kind, with the default values and with all."""
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")

    plain = [manifest for manifest in (*manifests(), *render_chart(PLACED)) if manifest["kind"] not in CUSTOM]
    for manifest in plain:
        validate.validate(manifest, KUBERNETES, strict=True)
    kinds = {manifest["kind"] for manifest in manifests()}
    assert {"StatefulSet", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler", "NetworkPolicy"} <= kinds
    assert {"ServiceMonitor", "PrometheusRule", "Job", "PersistentVolumeClaim", "ConfigMap"} <= kinds


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"replicas": 0}, "0 is less than the minimum of 1"),
        ({"replica": 3}, "'replica' was unexpected"),
        ({"models": []}, "non-empty"),
        ({"antiAffinity": "none"}, "'none' is not one of"),
        ({"settings": {"database_url": "postgresql://..."}}, "database_url|not be valid"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_the_chart_refuses_bad_values(values: dict[str, Any], problem: str) -> None:
    """The schema names what is wrong; a secret is not a setting."""
    with pytest.raises(jsonschema.ValidationError, match=problem):
        render_chart(values)


def test_values_change_what_they_name() -> None:
    """Every part can be switched off, and names, models, settings and sizes reach the manifests."""
    off = {"monitoring": {"serviceMonitor": False, "rules": False, "dashboards": False}}
    off |= {"autoscaler": {"enabled": False}, "networkPolicy": {"enabled": False}, "antiAffinity": "preferred"}
    models = [{"name": name, "bundle": f"{name}.safetensors"} for name in ("a", "b")]
    chosen = {"models": models, "settings": {"retention_rows": 500_000_000, "retention_days": 0.5}, "workers": 2}
    rendered = render_chart({**off, **chosen, "bundles": {"existingClaim": "mine"}, "image": {"tag": "2.0"}})

    by_kind = {each["kind"]: each for each in rendered}
    assert by_kind.keys() == {"PodDisruptionBudget", "Service", "ServiceAccount", "StatefulSet"}
    pod = by_kind["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"] == ["serve", "--model=a=a.safetensors", "--model=b=b.safetensors"]
    assert container["image"] == "darksight:2.0"
    assert container["resources"]["limits"]["cpu"] == "2"
    variables = {each["name"]: each["value"] for each in container["env"]}
    assert (variables["DARKSIGHT_RETENTION_ROWS"], variables["DARKSIGHT_RETENTION_DAYS"]) == ("500000000", "0.5")
    assert by_kind["StatefulSet"]["spec"]["replicas"] == REPLICAS
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == "mine"
    assert "preferredDuringSchedulingIgnoredDuringExecution" in pod["affinity"]["podAntiAffinity"]
    pinned = render_chart({"image": {"digest": f"sha256:{'0' * 64}"}})
    assert f"darksight@sha256:{'0' * 64}" in json.dumps(pinned)


def test_pods_find_registry_and_nodes_and_the_operator_finds_its_objects() -> None:
    """Pull secrets, nodes, labels and annotations are those of every pod; a fit may have nodes of its own."""
    rendered = render_chart(PLACED)

    pods = {each["kind"]: each["spec"]["template"] for each in rendered if each["kind"] in ("StatefulSet", "Job")}
    assert len(pods) == 2
    for pod in pods.values():
        assert pod["spec"]["imagePullSecrets"] == [{"name": "a"}, {"name": "b"}]
        assert pod["spec"]["tolerations"] == PLACED["tolerations"]
        assert pod["metadata"]["labels"]["team.example.com/cost"] == "7"
        assert pod["metadata"]["annotations"] == PLACED["podAnnotations"]
    assert pods["StatefulSet"]["spec"]["nodeSelector"] == PLACED["nodeSelector"]
    assert pods["Job"]["spec"]["nodeSelector"] == PLACED["fit"]["nodeSelector"]
    assert pods["StatefulSet"]["spec"]["affinity"].keys() == {"nodeAffinity", "podAntiAffinity"}
    labelled = [each["metadata"]["labels"]["release"] for each in rendered if each["kind"] in CUSTOM]
    assert labelled == ["prometheus"] * len(CUSTOM)


@pytest.mark.parametrize(
    "values",
    [
        {"podLabels": {"app.kubernetes.io/component": "mine"}},
        {"affinity": {"podAntiAffinity": {}}},
        {"settings": {"api_port": 8081}},
        {"nodeSelector": {"a": 1}},
    ],
)
def test_values_that_would_break_the_manifests_are_refused(values: dict[str, Any]) -> None:
    """Labels of selectors, the affinity that the chart sets, and ports that are in use."""
    with pytest.raises(jsonschema.ValidationError):
        render_chart(values)


def test_settings_that_change_ports_change_the_manifests() -> None:
    """With http_tls probes and monitor use HTTPS; the HTTP API gets a port of pod and service, open to clients."""
    groups = {"analysts": "read,report", "fraud team": "read models=fraud"}
    given = {"oidc_groups": groups, "oidc_issuer": "https://login.example.com"}
    rendered = render_chart({"settings": {"http_tls": True, "api_port": 8083, **given}})
    by_name = {(each["kind"], each["metadata"]["name"]): each.get("spec") for each in rendered}

    (container,) = by_name["StatefulSet", "darksight"]["template"]["spec"]["containers"]
    assert {container[probe]["httpGet"]["scheme"] for probe in ("readinessProbe", "livenessProbe")} == {"HTTPS"}
    variables = {each["name"]: each["value"] for each in container["env"]}
    assert variables["DARKSIGHT_API_PORT"] == "8083"
    assert json.loads(variables["DARKSIGHT_OIDC_GROUPS"]) == groups
    (endpoint,) = by_name["ServiceMonitor", "darksight"]["endpoints"]
    assert (endpoint["scheme"], endpoint["tlsConfig"]) == ("https", {"serverName": "darksight.darksight.svc"})
    assert {"name": "api", "containerPort": 8083} in container["ports"]
    assert {"name": "api", "port": 8083, "targetPort": "api"} in by_name["Service", "darksight-http"]["ports"]
    clients = by_name["NetworkPolicy", "darksight"]["ingress"][0]
    assert [each["port"] for each in clients["ports"]] == [8081, 8083]
    assert [each["port"] for each in by_name["NetworkPolicy", "darksight"]["egress"][1]["ports"]] == [5432, 443]


def test_settings_of_the_chart_are_settings() -> None:
    """What values.yaml sets and what its schema reserves for the chart are settings of the service."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))["properties"]["settings"]
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))["settings"]

    assert {*schema["propertyNames"]["not"]["enum"], *values} <= {*Settings.model_fields}


def test_chart_has_the_version_of_the_package() -> None:
    """The image that a chart installs is that of its release."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))

    assert chart["appVersion"] == chart["version"] == __version__


def test_selectors_find_the_pods() -> None:
    """Services, budget, policy and probes speak of pods, ports and jobs that exist."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for manifest in manifests():
        by_kind.setdefault(manifest["kind"], []).append(manifest)
    (workload,) = by_kind["StatefulSet"]
    labels = workload["spec"]["template"]["metadata"]["labels"]
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}

    assert ports == {"grpc": 8081, "http": 8080, "explorer": 8082}
    assert workload["spec"]["selector"]["matchLabels"] == labels
    assert by_kind["PodDisruptionBudget"][0]["spec"]["selector"]["matchLabels"] == labels
    assert by_kind["NetworkPolicy"][0]["spec"]["podSelector"]["matchLabels"] == labels
    ranks = next(job for job in by_kind["Job"] if job["spec"].get("completionMode") == "Indexed")
    pods = ranks["spec"]["template"]["metadata"]["labels"]
    (meeting,) = (service for service in by_kind["Service"] if service["spec"]["selector"] == pods)
    assert ranks["spec"]["template"]["spec"]["subdomain"] == meeting["metadata"]["name"]
    assert f"--nnodes={ranks['spec']['completions']}" in ranks["spec"]["template"]["spec"]["containers"][0]["args"]
    for service in by_kind["Service"]:
        if service is meeting:
            continue
        assert service["spec"]["selector"] == labels
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= set(ports)
    assert "None" in {service["spec"].get("clusterIP") for service in by_kind["Service"]}
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"].startswith("/v2/health/")
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"] for volume in workload["spec"]["template"]["spec"]["volumes"]}
    assert mounted == volumes | {claim["metadata"]["name"] for claim in workload["spec"]["volumeClaimTemplates"]}
    assert by_kind["HorizontalPodAutoscaler"][0]["spec"]["scaleTargetRef"]["name"] == workload["metadata"]["name"]


@pytest.mark.parametrize("pods", [1, 3])
def test_a_fit_can_run_again(pods: int) -> None:
    """Each revision writes a file of its own, and a restart of all pods counts as one of four."""
    (job,) = [each for each in render_chart({"fit": {"enabled": True, "pods": pods}}) if each["kind"] == "Job"]
    (container,) = job["spec"]["template"]["spec"]["containers"]

    assert "/bundles/model-1.safetensors" in " ".join(container["args"])
    assert job["spec"]["backoffLimit"] == 4 * pods


def test_no_pod_gets_variables_of_service_links() -> None:
    """They begin as those of settings do, and some have the name of one."""
    pods = [each["spec"]["template"]["spec"] for each in manifests() if each["kind"] in ("StatefulSet", "Job")]

    assert len(pods) == 2
    assert [pod["enableServiceLinks"] for pod in pods] == [False] * len(pods)
    # Nothing but the service itself may keep a pod from starting.
    assert not any("initContainers" in pod for pod in pods)


def test_replicas_are_those_that_are_tested() -> None:
    """tests/e2e/test_replicas.py runs as many replicas with the settings of the manifest; the rest of it fits them."""
    by_kind = {manifest["kind"]: manifest["spec"] for manifest in manifests() if "spec" in manifest}
    workload = by_kind["StatefulSet"]
    pod, (claim,) = workload["template"]["spec"], workload["volumeClaimTemplates"]
    (container,), workers = pod["containers"], int(SETTINGS["DARKSIGHT_WORKERS"])
    variables = {each["name"] for each in container["env"]}
    headless = [each for each in manifests() if each["kind"] == "Service" and each["spec"].get("clusterIP") == "None"]

    assert (REPLICAS, workers) == (3, 1)
    # An upgrade must not undo what the autoscaler did.
    assert "replicas" not in workload
    assert "DARKSIGHT_DATABASE_URL_FILE" in variables
    assert workload["serviceName"] in [each["metadata"]["name"] for each in headless]
    assert by_kind["PodDisruptionBudget"]["maxUnavailable"] < REPLICAS / 2
    (rule,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    assert rule["labelSelector"]["matchLabels"] == workload["selector"]["matchLabels"]
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert container["resources"]["requests"]["cpu"] == str(workers)
    gibibytes = int(claim["spec"]["resources"]["requests"]["storage"].removesuffix("Gi"))
    assert gibibytes << 30 >= 2 * workers * Settings().spool_bytes


def test_pods_have_time_to_stop() -> None:
    """A replica that is told to stop may finish its calls and bring its points to the store before it is killed."""
    (workload,) = [manifest for manifest in manifests() if manifest["kind"] == "StatefulSet"]
    pod = workload["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    sleep = int(container["lifecycle"]["preStop"]["exec"]["command"][-1])

    assert pod["terminationGracePeriodSeconds"] >= sleep + Settings().grace_seconds + KEEPER_SECONDS
