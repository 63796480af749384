"""The configurations of the collector are consistent, remove content first, and sample after everything is counted."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

import pytest

from tests import yaml_files
from tests.judges.collector import CONFIGS
from traced_tools.core.enums import DECISIONS, STOP_REASONS
from traced_tools.observe import names

GATEWAYS = (
    ("gateway.yaml",),
    ("gateway.yaml", "audit.yaml"),
    ("gateway.yaml", "dialects.yaml"),
    ("gateway.yaml", "audit.yaml", "dialects.yaml"),
)
SETS = (("agent.yaml",), *GATEWAYS, ("tail.yaml",))
"""The configurations, each with the files that are merged."""
KINDS = ("receivers", "processors", "exporters", "connectors", "extensions")
CLEANING = ["memory_limiter", "redaction", "transform/content"]
MAPPING = ["memory_limiter", "transform/dialects", "redaction", "transform/content"]
"""The processors of spans with `dialects.yaml`, which maps attributes that the redaction would remove."""

of_each = pytest.mark.parametrize("files", SETS, ids=" + ".join)
of_each_gateway = pytest.mark.parametrize("files", GATEWAYS, ids=" + ".join)


def merged(files: tuple[str, ...]) -> dict[str, Any]:
    """Return the files as the collector merges them: maps are joined, and everything else is replaced."""

    def join(one: Any, other: Any) -> Any:
        if not (isinstance(one, Mapping) and isinstance(other, Mapping)):
            return other
        return {key: join(one.get(key, {}), other[key]) if key in other else one[key] for key in {**one, **other}}

    return reduce(join, (yaml_files.load((CONFIGS / name).read_text()) for name in files), {})


def pipelines(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = config["service"]["pipelines"]
    return found


def settings(config: Any, key: str) -> Iterator[Any]:
    """Yield the values of a key, however deep."""
    if isinstance(config, Mapping):
        if key in config:
            yield config[key]
        for value in config.values():
            yield from settings(value, key)
    elif isinstance(config, list):
        for value in config:
            yield from settings(value, key)


@of_each
def test_each_component_is_used_and_each_used_component_is_defined(files: tuple[str, ...]) -> None:
    config = merged(files)
    defined = {kind: set(config.get(kind, ())) for kind in KINDS}
    used: dict[str, set[str]] = {kind: set() for kind in KINDS}
    used["extensions"] = {*config["service"]["extensions"], *settings(config, "storage")}
    for pipeline in pipelines(config).values():
        used["processors"].update(pipeline.get("processors", ()))
        for kind in ("receivers", "exporters"):
            used[kind].update(set(pipeline[kind]) - defined["connectors"])
    as_exporter, as_receiver = (
        {name for pipeline in pipelines(config).values() for name in pipeline[kind]} & defined["connectors"]
        for kind in ("exporters", "receivers")
    )
    used["connectors"] = as_exporter & as_receiver
    assert used == defined
    assert set(config["service"]["extensions"]) == defined["extensions"]


@of_each
def test_each_route_leads_to_a_pipeline_that_its_connector_feeds(files: tuple[str, ...]) -> None:
    config = merged(files)
    for name, connector in config.get("connectors", {}).items():
        if name.startswith("routing/"):
            routes = [*settings(connector, "pipelines"), connector.get("default_pipelines", [])]
            fed = {pipeline for pipeline, of in pipelines(config).items() if name in of["receivers"]}
            assert {pipeline for route in routes for pipeline in route} == fed


def test_the_manifest_builds_the_components_that_the_configurations_use() -> None:
    manifest = yaml_files.load((CONFIGS / "builder.yaml").read_text())
    built = {
        (kind, each["gomod"].split()[0].rpartition("/")[2].removesuffix(kind[:-1]))
        for kind in KINDS
        for each in manifest[kind]
    }
    used = {
        (kind, name.partition("/")[0].replace("_", ""))
        for files in SETS
        for kind in KINDS
        for name in merged(files).get(kind, ())
    }
    assert built == used


@of_each
def test_the_memory_limiter_is_first_where_data_comes_in(files: tuple[str, ...]) -> None:
    for pipeline in pipelines(merged(files)).values():
        assert (pipeline.get("processors", [""])[0] == "memory_limiter") == ("otlp" in pipeline["receivers"])


@of_each_gateway
def test_the_gateway_removes_content_before_any_exporter_or_connector(files: tuple[str, ...]) -> None:
    for name, pipeline in pipelines(merged(files)).items():
        processors = pipeline.get("processors", [])
        if "otlp" in pipeline["receivers"]:
            assert processors == (MAPPING if name == "traces" and "dialects.yaml" in files else CLEANING)
        else:
            assert not {*processors} & {*MAPPING}


@of_each_gateway
def test_the_gateway_counts_spans_and_does_not_sample(files: tuple[str, ...]) -> None:
    config = merged(files)
    assert "tail_sampling" not in config["processors"]
    assert pipelines(config)["traces/operations"]["exporters"] == ["span_metrics"]


def test_the_tail_tier_makes_no_metrics_of_spans() -> None:
    assert not merged(("tail.yaml",)).get("connectors")


@of_each
def test_batches_are_made_in_the_queues_of_exporters(files: tuple[str, ...]) -> None:
    config = merged(files)
    assert "batch" not in config.get("processors", {})
    for name, exporter in config["exporters"].items():
        (queue,) = settings(exporter, "sending_queue")
        assert queue["sizer"] == "bytes", name
        assert 0 < queue["batch"]["min_size"] < queue["batch"]["max_size"] < queue["queue_size"], name


def test_the_generated_keys_are_all_attributes_that_are_not_content() -> None:
    spec = importlib.util.spec_from_file_location("collector_allowed_keys", CONFIGS / "allowed_keys.py")
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    committed = generator.GATEWAY.read_text()
    assert generator.with_allowed_keys(committed) == committed, "run make collector-config"


def test_the_gateway_lets_every_attribute_through_that_is_not_content() -> None:
    allowed = merged(("gateway.yaml",))["processors"]["redaction"]["allowed_keys"]
    content = {name for each in (*names.SPANS, *names.EVENTS.values()) for name in each.content}
    assert len(set(allowed)) == len(allowed)
    assert names.ATTRIBUTES.keys() - set(allowed) == content - {names.CONTENT_TRUNCATED}


def test_no_pattern_of_the_redaction_matches_a_key_that_is_let_through() -> None:
    redaction = merged(("gateway.yaml",))["processors"]["redaction"]
    patterns = [*redaction.get("blocked_key_patterns", ()), *redaction.get("blocked_values", ())]
    assert not [key for key in redaction["allowed_keys"] if any(re.search(each, key) for each in patterns)]
    assert redaction["allow_all_keys"] is False


def test_the_tail_tier_keeps_each_refusing_decision_and_each_stop_reason_of_a_limit() -> None:
    policies = {
        each["string_attribute"]["key"]: set(each["string_attribute"]["values"])
        for each in merged(("tail.yaml",))["processors"]["tail_sampling"]["policies"]
        if each["type"] == "string_attribute"
    }
    assert policies[names.TOOL_DECISION] == set(DECISIONS) - {"allowed", "approved", "answered"}
    assert policies[names.LOOP_STOP_REASON] == set(STOP_REASONS) - {
        *("answered", "return_direct", "advisor", "awaiting_approval")
    }  # the call that a run waits for has the decision `pending`


def test_the_audit_stream_waits_on_disk_and_never_gives_up() -> None:
    exporters = merged(("agent.yaml",))["exporters"], merged(("gateway.yaml", "audit.yaml"))["exporters"]
    for exporter in (exporters[0]["otlp_http/logs"], exporters[1]["otlp_http/audit"]):
        assert exporter["sending_queue"]["storage"] == "file_storage"
        assert exporter["sending_queue"]["block_on_overflow"] is True
        assert exporter["retry_on_failure"]["max_elapsed_time"] == 0


@of_each
def test_each_address_comes_from_a_variable_and_is_loopback_without_it(files: tuple[str, ...]) -> None:
    config = merged(files)
    addresses = [*settings(config, "endpoint"), *settings(config, "host"), *settings(config, "hostname")]
    assert len(addresses) >= 4
    for address in addresses:
        assert re.match(r"\$\{env:[A-Z_]+:-(http://)?127\.0\.0\.1\b", address), address


def test_all_collectors_of_one_machine_listen_on_different_ports() -> None:
    text = "".join((CONFIGS / name).read_text() for name in ("agent.yaml", "gateway.yaml", "tail.yaml"))
    ports = re.findall(r"\$\{env:LISTEN_\w+_PORT:-(\d+)}", text)
    assert len(ports) == len(set(ports)) == 11
