"""The stack of `deploy/compose`: its files agree with each other, and with what they mount."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests import yaml_files
from tests.dashboards.logql_reader import selections
from tests.judges.collector import PROGRAM, TO_HAVE_IT
from tests.judges.programs import ROOT, environment, program

DEPLOY = ROOT / "deploy"
FOLDER = DEPLOY / "compose"
DOCKER_COMPOSE = "apt-get install docker-compose"
ANONYMOUS = "GF_AUTH_ANONYMOUS_ENABLED"


def read(path: Path) -> Any:
    """Return the content of a YAML file."""
    return yaml_files.load(path.read_text())


COMPOSE = read(FOLDER / "compose.yaml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PROMETHEUS = read(FOLDER / "prometheus.yaml")
SOURCES = {source["uid"]: source for source in read(DEPLOY / "grafana" / "datasources.yaml")["datasources"]}
COLLECTORS = ("gateway", "tail")
LISTENS = {
    **{
        name: {int(port) for key, port in SERVICES[name]["environment"].items() if re.match("LISTEN_.*_PORT", key)}
        for name in COLLECTORS
    },
    "prometheus": {9090},
    "alertmanager": {9093},
    "grafana": {3000},
    "loki": {read(FOLDER / "loki.yaml")["server"]["http_listen_port"]},
    "tempo": {read(FOLDER / "tempo.yaml")["server"]["http_listen_port"], 4318},
}
"""The ports of each service; those without a configuration file have the default of their image."""


def _mounts(service: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Yield source, target and whether it is read-only of each volume of a service."""
    for volume in service.get("volumes", ()):
        source, target, *mode = volume.split(":")
        yield source, target, mode == ["ro"]


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the path and the text of each scalar in a document."""
    match value:
        case dict():
            for key, each in value.items():
                yield from _leaves(each, (*path, str(key)))
        case list():
            for each in value:
                yield from _leaves(each, path)
        case _:
            yield path, str(value)


def _configurations() -> Iterator[tuple[Path, Any]]:
    """Yield the path and each document of every YAML file in deploy, but those that kustomize generates."""
    for path in sorted(DEPLOY.rglob("*.yaml")):
        for document in yaml_files.load_all(path.read_text()):
            yield path, document


def test_every_image_has_a_version() -> None:
    for name, service in SERVICES.items():
        assert re.fullmatch(r"[a-z/-]+:v?\d+\.\d+\.\d+(@sha256:[0-9a-f]{64})?", service["image"]), name


def test_the_image_of_the_collectors_has_the_version_and_the_components_of_the_builder() -> None:
    builder = read(DEPLOY / "collector" / "builder.yaml")
    for name in COLLECTORS:
        assert SERVICES[name]["image"] == f"otel/opentelemetry-collector-contrib:{builder['dist']['version']}"
    modules = [each["gomod"] for kind, parts in builder.items() if kind != "dist" for each in parts]
    in_the_image = ("go.opentelemetry.io/collector/", "github.com/open-telemetry/opentelemetry-collector-contrib/")
    assert [module for module in modules if not module.startswith(in_the_image)] == []


def test_every_mounted_path_is_in_the_repository_and_read_only() -> None:
    volumes = set()
    for name, service in SERVICES.items():
        for source, target, read_only in _mounts(service):
            assert target.startswith("/")
            if source.startswith("."):
                assert (FOLDER / source).exists(), f"{name}: {source}"
                assert read_only, f"{name}: {source}"
            else:
                volumes.add(source)
    assert volumes == set(COMPOSE["volumes"])


def test_every_file_that_a_command_names_is_mounted() -> None:
    named = 0
    for name, service in SERVICES.items():
        targets = [target for _, target, _ in _mounts(service)]
        for option in service.get("command", ()):
            if match := re.fullmatch(r"--?(?:config(?:\.file)?|storage\.(?:tsdb\.)?path)=(.+)", option):
                named += 1
                assert match[1] in targets, f"{name}: {option}"
    assert named >= 5


def test_collectors_get_variables_that_their_configurations_read() -> None:
    for name in COLLECTORS:
        texts = [(FOLDER / source).read_text() for source, _, _ in _mounts(SERVICES[name]) if source.startswith(".")]
        variables = set(re.findall(r"\$\{env:(\w+)", "".join(texts)))
        unread = set(SERVICES[name]["environment"]) - variables
        assert unread <= {"LISTEN_HTTP_PORT"}, name  # the tail tier has no port for HTTP
        endpoints = {variable for variable in variables if variable.endswith(("ENDPOINT", "HOSTNAME"))}
        assert endpoints <= set(SERVICES[name]["environment"]), name


def test_ports_are_published_on_the_loopback_interface_only() -> None:
    published = [(name, port.split(":")) for name, service in SERVICES.items() for port in service.get("ports", ())]
    assert {name for name, _ in published} == {"gateway", "prometheus", "alertmanager", "grafana"}
    for name, (interface, outside, inside) in published:
        assert interface == "127.0.0.1"
        assert outside == inside
        assert int(inside) in LISTENS[name]


def test_every_address_names_a_service_and_a_port_on_which_it_listens() -> None:
    addresses = [target for job in PROMETHEUS["scrape_configs"] for target in job["static_configs"][0]["targets"]]
    addresses += PROMETHEUS["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"]
    urls = [source["url"] for source in SOURCES.values()]
    for service in SERVICES.values():
        variables = service.get("environment", {})
        texts = [text.removeprefix("${AUDIT_ENDPOINT:-").removesuffix("}") for text in variables.values()]
        urls += [text for text in texts if text.startswith("http")]
        if "TAIL_HOSTNAME" in variables:
            addresses.append(f"{variables['TAIL_HOSTNAME']}:{variables['TAIL_GRPC_PORT']}")
    addresses += [urlsplit(url).netloc for url in urls]
    for address in addresses:
        host, port = address.split(":")
        assert int(port) in LISTENS["prometheus" if host == "localhost" else host], address
    assert {address.split(":")[0] for address in addresses} == {*SERVICES, "localhost"}


def test_a_service_waits_for_the_health_of_services_that_have_a_check() -> None:
    without_a_shell = {"gateway", "tail", "tempo", "loki"}
    for name, service in SERVICES.items():
        assert ("healthcheck" in service) == (name not in without_a_shell)
        for other, condition in service.get("depends_on", {}).items():
            healthy = "service_started" if other in without_a_shell else "service_healthy"
            assert condition == {"condition": healthy}, f"{name} on {other}"
        if check := service.get("healthcheck"):
            assert urlsplit(check["test"][-1]).port in LISTENS[name]


def test_every_service_is_bounded_and_restarted() -> None:
    for service in SERVICES.values():
        assert service["restart"] == "unless-stopped"
        assert re.fullmatch(r"\d+[mg]", service["mem_limit"])
        assert service["logging"]["options"].keys() == {"max-size", "max-file"}
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_only_the_demonstration_lets_anyone_look() -> None:
    allowing = {}
    for path, document in _configurations():
        for keys, value in _leaves(document):
            if "anonymous" in ".".join(keys).lower() and value.lower() not in ("false", "viewer"):
                allowing[path.name] = value
    assert allowing == {"demo.override.yaml": "true"}
    assert SERVICES["grafana"]["environment"][ANONYMOUS] == "false"
    demonstration = read(FOLDER / "demo.override.yaml")["services"]
    assert demonstration == {"grafana": {"environment": {ANONYMOUS: "true", "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer"}}}


def test_no_file_holds_a_secret() -> None:
    secret = re.compile(r"password|secret|token|credential|api_?key|authorization", re.IGNORECASE)
    reference = re.compile(r"/\S+|\./secrets/\S+|[a-z-]+(\.yaml)?|True|False")  # a path, a name, or a switch
    for path, document in _configurations():
        if path.is_relative_to(DEPLOY / "kubernetes" / "base" / "configs") or path.parent.name == "collector":
            continue  # their lists of attribute keys are full of tokens
        for keys, value in _leaves(document):
            if any(secret.search(key) for key in keys):
                assert reference.fullmatch(value), f"{path}: {'.'.join(keys)}"
            assert "@" not in value or "sha256" in value, f"{path}: {'.'.join(keys)}"
    tracked = subprocess.run(["git", "ls-files", "secrets"], cwd=FOLDER, capture_output=True, text=True, check=True)
    assert {Path(name).name for name in tracked.stdout.split()} == {".gitignore"}


def test_grafana_has_no_default_password_and_nobody_signs_up() -> None:
    variables = SERVICES["grafana"]["environment"]
    (secret,) = SERVICES["grafana"]["secrets"]
    assert variables["GF_SECURITY_ADMIN_PASSWORD__FILE"] == f"/run/secrets/{secret}"
    assert COMPOSE["secrets"] == {secret: {"file": f"./secrets/{secret}"}}
    assert variables["GF_USERS_ALLOW_SIGN_UP"] == "false"


def test_nothing_reports_usage_to_its_makers() -> None:
    assert SERVICES["grafana"]["environment"]["GF_ANALYTICS_REPORTING_ENABLED"] == "false"
    assert read(FOLDER / "tempo.yaml")["usage_report"] == {"reporting_enabled": False}
    assert read(FOLDER / "loki.yaml")["analytics"] == {"reporting_enabled": False}


def test_each_signal_is_kept_for_a_stated_time() -> None:
    (kept,) = (option for option in SERVICES["prometheus"]["command"] if "retention.time" in option)
    assert int(kept.removeprefix("--storage.tsdb.retention.time=").removesuffix("d")) > 30  # the objectives' window
    loki = read(FOLDER / "loki.yaml")
    assert loki["limits_config"]["retention_period"] == "336h"
    assert loki["compactor"]["retention_enabled"] is True
    tempo = read(FOLDER / "tempo.yaml")
    scheduled = tempo["backend_scheduler"]["provider"]["compaction"]["compaction"]["block_retention"]
    assert scheduled == tempo["backend_worker"]["compaction"]["block_retention"] == "336h"
    assert any("data.retention" in option for option in SERVICES["alertmanager"]["command"])


def test_prometheus_takes_what_the_gateway_pushes() -> None:
    assert "--web.enable-otlp-receiver" in SERVICES["prometheus"]["command"]
    assert "--enable-feature=exemplar-storage" in SERVICES["prometheus"]["command"]
    assert SERVICES["gateway"]["environment"]["METRICS_ENDPOINT"].endswith("/api/v1/otlp")
    assert PROMETHEUS["otlp"]["translation_strategy"] == "UnderscoreEscapingWithSuffixes"
    assert "service.version" in PROMETHEUS["otlp"]["promote_resource_attributes"]
    assert "out_of_order_time_window" in PROMETHEUS["storage"]["tsdb"]


def test_grafana_gets_from_each_signal_to_the_others() -> None:
    for uid, source in SOURCES.items():
        named = [value for keys, value in _leaves(source["jsonData"]) if keys[-1] == "datasourceUid"]
        assert set(named) <= set(SOURCES), uid
    destinations = SOURCES["prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    assert {each["name"]: each["datasourceUid"] for each in destinations} == {"trace_id": "tempo", "traceID": "tempo"}
    tempo = SOURCES["tempo"]["jsonData"]
    assert tempo["tracesToLogsV2"]["datasourceUid"] == "loki"
    assert '| trace_id="$${__trace.traceId}"' in tempo["tracesToLogsV2"]["query"]
    assert tempo["tracesToMetrics"]["datasourceUid"] == tempo["serviceMap"]["datasourceUid"] == "prometheus"
    (field,) = SOURCES["loki"]["jsonData"]["derivedFields"]
    assert (field["matcherType"], field["matcherRegex"], field["datasourceUid"]) == ("label", "trace_id", "tempo")


def test_the_boards_find_data_sources_of_their_kinds() -> None:
    kinds = set()
    for path in (ROOT / "dashboards" / "classic").glob("*.json"):
        variables = json.loads(path.read_text())["templating"]["list"]
        kinds |= {variable["query"] for variable in variables if variable["type"] == "datasource"}
    assert kinds
    assert kinds <= {source["type"] for source in SOURCES.values()}


def test_grafana_reads_the_folder_into_which_the_boards_are_mounted() -> None:
    (provider,) = read(DEPLOY / "grafana" / "dashboards.yaml")["providers"]
    targets = {target: source for source, target, _ in _mounts(SERVICES["grafana"])}
    assert targets[provider["options"]["path"]] == "../../dashboards/classic"
    assert provider["allowUiUpdates"] is False


@pytest.mark.slow
@pytest.mark.parametrize("name", COLLECTORS)
def test_the_collector_accepts_its_files_with_the_variables_of_its_service(name: str) -> None:
    mounted = {target: FOLDER / source for source, target, _ in _mounts(SERVICES[name])}
    options = [f"--config={mounted[option.removeprefix('--config=')]}" for option in SERVICES[name]["command"]]
    variables = environment({**SERVICES[name]["environment"], "AUDIT_ENDPOINT": "http://loki:3100/otlp"})
    command = [program(PROGRAM, TO_HAVE_IT), "validate", *options]
    ran = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.slow
def test_promtool_accepts_the_configuration_and_the_rules_that_it_loads(tmp_path: Path) -> None:
    promtool = program("promtool", "apt-get install prometheus")
    ran = subprocess.run([promtool, "--version"], capture_output=True, text=True, check=True)
    config = read(FOLDER / "prometheus.yaml")
    if "version 2." in ran.stdout + ran.stderr:  # it knows everything but what is new in Prometheus 3
        del config["otlp"], config["global"]["scrape_native_histograms"]
    mounted = {target: FOLDER / source for source, target, _ in _mounts(SERVICES["prometheus"])}
    (pattern,) = config["rule_files"]
    folder, glob = pattern.rsplit("/", 1)
    config["rule_files"] = [str(mounted[folder].resolve() / glob)]
    path = tmp_path / "prometheus.yaml"
    path.write_text(yaml.safe_dump(config))
    ran = subprocess.run([promtool, "check", "config", path], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{len(list(mounted[folder].glob(glob)))} rule files found" in ran.stdout


def test_the_logs_of_a_trace_are_looked_up_in_the_stream_of_their_service() -> None:
    tempo = SOURCES["tempo"]["jsonData"]["tracesToLogsV2"]
    query = tempo["query"].replace("$${__tags}", 'service_name="agents"').replace("$${__trace.traceId}", "0af7")
    (selected,), (label,) = selections([query])[0], tempo["tags"]
    logged = {label["value"]: "agents", "trace_id": "0af7"}
    assert label["key"] == "service.name"
    assert [selected.selects(logged | other) for other in ({}, {"trace_id": "1bf7"}, {label["value"]: "shop"})] == [
        *(True, False, False)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("files", [("compose.yaml",), ("compose.yaml", "demo.override.yaml")], ids=" ".join)
def test_docker_compose_accepts_the_files(files: tuple[str, ...]) -> None:
    options = [option for name in files for option in ("-f", FOLDER / name)]
    command = [program("docker-compose", DOCKER_COMPOSE), *options, "config"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    rendered = yaml_files.load(ran.stdout)["services"]
    assert rendered.keys() == SERVICES.keys()
    assert rendered["grafana"]["environment"][ANONYMOUS] == ("true" if len(files) == 2 else "false")
    assert rendered["gateway"]["environment"]["AUDIT_ENDPOINT"] == "http://loki:3100/otlp"
