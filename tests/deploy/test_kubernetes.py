"""The manifests of `deploy/kubernetes`, as kustomize builds them."""

from __future__ import annotations

import base64
import re
import runpy
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests import yaml_files
from tests.deploy.resource_schemas import SCHEMAS
from tests.deploy.test_collector import merged
from tests.judges.collector import PROGRAM, TO_HAVE_IT
from tests.judges.programs import ROOT, environment, missing, program

FOLDER = ROOT / "deploy" / "kubernetes"
FILES = runpy.run_path(str(FOLDER / "generate.py"))["files"]
COLLECTORS = {"agent": ("agent.yaml",), "gateway": ("gateway.yaml", "audit.yaml"), "tail": ("tail.yaml",)}
"""The files of `deploy/collector` that each collector runs."""
READ_BY_THE_OPERATOR = {"GRPC": 4317, "HTTP": 4318, "HEALTH": 13133, "METRICS": 8888}
"""The ports of services and probes, if the operator finds only variables in a configuration."""

Resource = dict[str, Any]


@cache
def _built(folder: str) -> dict[tuple[str, str], Resource]:
    """Return the resources of a kustomization by kind and name."""
    if kustomize := shutil.which("kustomize"):
        command = [kustomize, "build"]
    elif kubectl := shutil.which("kubectl"):
        command = [kubectl, "kustomize"]
    else:
        missing("neither kustomize nor kubectl is here: go install sigs.k8s.io/kustomize/kustomize/v5@v5.5.0")
    ran = subprocess.run([*command, FOLDER / folder], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    resources = list(yaml_files.load_all(ran.stdout))
    found = {(each["kind"], each["metadata"]["name"]): each for each in resources}
    assert len(found) == len(resources)
    return found


@pytest.fixture(params=["base", "overlays/example"])
def built(request: pytest.FixtureRequest) -> dict[tuple[str, str], Resource]:
    """The resources of the base, and of the example."""
    return _built(request.param)


def _of(kind: str, built: Mapping[tuple[str, str], Resource]) -> dict[str, Resource]:
    return {name: resource for (its_kind, name), resource in built.items() if its_kind == kind}


def test_generated_manifests_are_up_to_date() -> None:
    outdated = [str(path.relative_to(ROOT)) for path, text in FILES() if not path.exists() or path.read_text() != text]
    assert outdated == [], "run make deploy"


@pytest.mark.slow
def test_every_resource_has_the_fields_of_its_kind(built: dict[tuple[str, str], Resource]) -> None:
    for (kind, name), resource in built.items():
        try:
            jsonschema.validate(resource, SCHEMAS[kind])
        except jsonschema.ValidationError as error:
            pytest.fail(f"{kind} {name}: {error.message} in {error.json_path}")


@pytest.mark.slow
def test_every_resource_is_in_the_namespace(built: dict[tuple[str, str], Resource]) -> None:
    for (kind, name), resource in built.items():
        assert kind == "Namespace" or resource["metadata"]["namespace"] == "telemetry", f"{kind} {name}"


@pytest.mark.slow
def test_collectors_run_the_configurations_of_the_collector_folder(built: dict[tuple[str, str], Resource]) -> None:
    collectors = _of("OpenTelemetryCollector", built)
    assert collectors.keys() == COLLECTORS.keys()
    version = yaml_files.load((ROOT / "deploy" / "collector" / "builder.yaml").read_text())["dist"]["version"]
    for name, resource in collectors.items():
        assert resource["spec"]["config"] == merged(COLLECTORS[name])
        assert resource["spec"]["image"] == f"otel/opentelemetry-collector-contrib:{version}"


@pytest.mark.slow
def test_the_collector_accepts_what_the_operator_gives_it(
    built: dict[tuple[str, str], Resource], tmp_path: Path
) -> None:
    variables = built["ConfigMap", _variables(built)]["data"]
    for name, resource in _of("OpenTelemetryCollector", built).items():
        config = tmp_path / f"{name}.yaml"
        config.write_text(yaml.safe_dump(resource["spec"]["config"]))
        command = [program(PROGRAM, TO_HAVE_IT), "validate", f"--config={config}"]
        ran = subprocess.run(command, env=environment(variables), capture_output=True, text=True)
        assert ran.returncode == 0, f"{name}: {ran.stderr}"


@pytest.mark.slow
def test_collectors_get_every_address_that_their_configurations_read(built: dict[tuple[str, str], Resource]) -> None:
    for name, resource in _of("OpenTelemetryCollector", built).items():
        ((source,),) = [tuple(each.values()) for each in resource["spec"]["envFrom"]]
        variables = built["ConfigMap", source["name"]]["data"]
        read = set(re.findall(r"\$\{env:(\w+)", yaml.safe_dump(resource["spec"]["config"], width=10_000)))
        assert {each for each in read if each.endswith(("ENDPOINT", "HOSTNAME"))} <= variables.keys(), name
        everywhere = {
            each for files in COLLECTORS.values() for each in re.findall(r"\$\{env:(\w+)", str(merged(files)))
        }
        assert variables.keys() <= everywhere
        assert {f"LISTEN_{port}_PORT": str(number) for port, number in READ_BY_THE_OPERATOR.items()}.items() <= (
            variables.items()
        )
        assert variables["LISTEN_HOST"] == "0.0.0.0"
        assert f"http://{_service('gateway')}:4318" == variables["GATEWAY_ENDPOINT"]
        assert (f"{_service('tail')}-headless", "4317") == (variables["TAIL_HOSTNAME"], variables["TAIL_GRPC_PORT"])


def _service(collector: str) -> str:
    """Return the name that the operator gives to a collector's service, and to its pods as a label."""
    return f"{collector}-collector"


@pytest.mark.slow
def test_queues_are_on_volumes(built: dict[tuple[str, str], Resource]) -> None:
    for name, resource in _of("OpenTelemetryCollector", built).items():
        spec = resource["spec"]
        mounts = {mount["mountPath"]: mount["name"] for mount in spec.get("volumeMounts", ())}
        claims = {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", ())}
        volumes = {volume["name"] for volume in spec.get("volumes", ())} | claims
        assert set(mounts.values()) == volumes
        if "file_storage" in spec["config"].get("extensions", {}):
            assert mounts[built["ConfigMap", _variables(built)]["data"]["QUEUE_DIRECTORY"]] == "queue", name
    gateway = built["OpenTelemetryCollector", "gateway"]["spec"]
    assert gateway["mode"] == "statefulset"
    assert [claim["metadata"]["name"] for claim in gateway["volumeClaimTemplates"]] == ["queue"]
    assert set(gateway["persistentVolumeClaimRetentionPolicy"].values()) == {"Retain"}


def _variables(built: Mapping[tuple[str, str], Resource]) -> str:
    (name,) = (name for name in _of("ConfigMap", built) if name.startswith("collectors-"))
    return name


@pytest.mark.slow
def test_only_the_gateway_scales_by_itself_and_evictions_are_bounded(built: dict[tuple[str, str], Resource]) -> None:
    specs = {name: resource["spec"] for name, resource in _of("OpenTelemetryCollector", built).items()}
    assert {name for name, spec in specs.items() if "autoscaler" in spec} == {"gateway"}
    assert {name for name, spec in specs.items() if "podDisruptionBudget" in spec} == {"gateway", "tail"}
    assert specs["agent"]["mode"] == "daemonset"
    for spec in specs.values():
        assert spec["resources"]["limits"]["memory"] == spec["resources"]["requests"]["memory"]
        assert spec["securityContext"]["readOnlyRootFilesystem"] is True
        assert spec["podSecurityContext"]["runAsNonRoot"] is True


@pytest.mark.slow
def test_rules_are_those_that_promtool_tests(built: dict[tuple[str, str], Resource]) -> None:
    files = {path.stem: path for path in (ROOT / "dashboards" / "rules").glob("*.yaml")}
    rules = _of("PrometheusRule", built)
    assert rules.keys() == {f"traced-tools-{name}" for name in files}
    for name, path in files.items():
        assert rules[f"traced-tools-{name}"]["spec"] == yaml_files.load(path.read_text())


@pytest.mark.slow
def test_each_board_is_a_labelled_config_map_that_fits(built: dict[tuple[str, str], Resource]) -> None:
    boards = {
        name: resource
        for name, resource in _of("ConfigMap", built).items()
        if "grafana_dashboard" in resource["metadata"].get("labels", {})
    }
    files = {path.stem: path for path in (ROOT / "dashboards" / "classic").glob("*.json")}
    assert boards.keys() == files.keys()
    for name, path in files.items():
        assert boards[name]["data"] == {path.name: path.read_text()}
        assert path.stat().st_size < 1_000_000  # the API server's limit is 1 MiB


@pytest.mark.slow
def test_alertmanager_and_grafana_have_the_files_of_the_compose_stack(built: dict[tuple[str, str], Resource]) -> None:
    secret = built["Secret", "traced-tools-alertmanager"]["data"]
    file = ROOT / "deploy" / "alertmanager" / "alertmanager.yaml"
    assert {name: base64.b64decode(text).decode() for name, text in secret.items()} == {file.name: file.read_text()}
    file = ROOT / "deploy" / "grafana" / "datasources.yaml"
    sources = built["ConfigMap", "traced-tools-datasources"]
    assert sources["data"] == {file.name: file.read_text()}
    assert sources["metadata"]["labels"] == {"grafana_datasource": "1"}


@pytest.mark.slow
def test_the_values_of_the_chart_agree_with_the_compose_stack_and_the_manifests() -> None:
    values = yaml_files.load((FOLDER / "kube-prometheus-stack.values.yaml").read_text())
    compose = yaml_files.load((ROOT / "deploy" / "compose" / "prometheus.yaml").read_text())
    spec = values["prometheus"]["prometheusSpec"]
    assert spec["otlp"]["promoteResourceAttributes"] == compose["otlp"]["promote_resource_attributes"]
    assert spec["otlp"]["translationStrategy"] == compose["otlp"]["translation_strategy"]
    assert spec["tsdb"]["outOfOrderTimeWindow"] == compose["storage"]["tsdb"]["out_of_order_time_window"]
    assert spec["exemplars"]["maxSize"] == compose["storage"]["exemplars"]["max_exemplars"]
    base = _built("base")
    assert ("Secret", values["alertmanager"]["alertmanagerSpec"]["configSecret"]) in base
    (webhooks,) = values["alertmanager"]["alertmanagerSpec"]["secrets"]
    assert f"/etc/alertmanager/secrets/{webhooks}/" in (ROOT / "deploy/alertmanager/alertmanager.yaml").read_text()
    labels = {label for _, each in base.items() for label in each["metadata"].get("labels", ())}
    for sidecar in values["grafana"]["sidecar"].values():
        assert sidecar["label"] in labels


@pytest.mark.slow
def test_applications_reach_the_agent_alone_and_people_reach_grafana_alone(
    built: dict[tuple[str, str], Resource],
) -> None:
    policies = {name: policy["spec"] for name, policy in _of("NetworkPolicy", built).items()}
    from_outside, inside = {}, set()
    for policy in policies.values():
        (target,) = policy["podSelector"]["matchLabels"].values()
        for rule in policy["ingress"]:
            assert rule["ports"], target
            for peer in rule["from"]:
                if "namespaceSelector" in peer:
                    from_outside[target] = sorted(port["port"] for port in rule["ports"])
                else:
                    (source,) = peer["podSelector"]["matchLabels"].values()
                    inside |= {(source, target, port["port"]) for port in rule["ports"]}
    assert from_outside == {_service("agent"): [4317, 4318], "grafana": [3000]}
    assert inside == {
        (_service("agent"), _service("gateway"), 4318),
        (_service("gateway"), _service("tail"), 4317),
        (_service("gateway"), "prometheus", 9090),
        (_service("gateway"), "loki", 3100),
        (_service("tail"), "tempo", 4318),
        ("prometheus", "opentelemetry-operator", 8888),
        ("prometheus", "prometheus", 9090),
        ("prometheus", "grafana", 3000),
        ("prometheus", "alertmanager", 9093),
        ("prometheus", "loki", 3100),
        ("prometheus", "tempo", 3200),
        *(("grafana", name, port) for name, port in {"prometheus": 9090, "loki": 3100, "tempo": 3200}.items()),
        ("grafana", "alertmanager", 9093),
    }


@pytest.mark.slow
def test_addresses_inside_the_namespace_are_allowed_by_a_policy() -> None:
    base = _built("base")
    variables = base["ConfigMap", _variables(base)]["data"]
    allowed = set()
    for policy in _of("NetworkPolicy", base).values():
        for rule in policy["spec"].get("ingress", ()):
            (name,) = policy["spec"]["podSelector"]["matchLabels"].values()
            allowed |= {(name, port["port"]) for port in rule["ports"]}
    called = re.findall(r"http://([\w-]+):(\d+)", " ".join(variables.values()))
    assert {name for name, _ in called} == {_service("gateway"), "prometheus", "loki", "tempo", "audit-archive"}
    for name, port in called:
        assert name == "audit-archive" or (name, int(port)) in allowed, name
    for name, service in _of("Service", base).items():
        assert service["spec"]["selector"] == {"app.kubernetes.io/name": name}
        assert all((name, port["port"]) in allowed for port in service["spec"]["ports"])


def test_no_manifest_holds_a_secret_or_a_moving_version() -> None:
    for path in FOLDER.rglob("*.*"):
        text = path.read_text()
        assert not re.search(r"image: \S+(:latest|/[\w-]+)\s*$", text, re.MULTILINE), path
        assert not re.search(r"(?i)^\s*(password|token|api_?key|authorization): \S", text, re.MULTILINE), path
        assert not re.search(r"://[^/\s]+@", text), path
    assert not [path for path in Path(FOLDER).rglob("*") if path.suffix in (".pem", ".key", ".crt")]
