"""`configure(prometheus=registry)` adds the metrics to the page of an application that uses prometheus-client."""

from __future__ import annotations

import os

import pytest

from tests.otel.processes import in_a_process
from traced_tools.errors import ConfigurationError
from traced_tools.otel.configure import configure

PAGE = """
import warnings
from prometheus_client import CollectorRegistry, Counter, REGISTRY
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as open_metrics
from prometheus_client.parser import text_string_to_metric_families

def families(registry):
    return [family.name for family in text_string_to_metric_families(generate_latest(registry).decode())]
RUNS = "gen_ai_invoke_agent_duration_seconds"
"""


@pytest.mark.parametrize(
    "registry",
    [
        *("REGISTRY", "CollectorRegistry()"),
        pytest.param("CollectorRegistry(auto_describe=True)", marks=pytest.mark.slow),  # as REGISTRY is
    ],
)
def test_one_page_has_the_metrics_of_the_application_and_of_its_runs(registry: str) -> None:
    script = f"""
registry = {registry}
orders = Counter("orders", "Orders.", registry=registry)
handle = configure(prometheus=registry)
orders.inc()
run()
found = families(registry)
assert handle.prometheus_address is None
assert RUNS in found and "orders" in found and "target_info" in found, found
assert len(found) == len(set(found))
with trace.get_tracer("t").start_as_current_span("s"):
    run()
assert "trace_id=" in open_metrics(registry).decode()
handle.shutdown()
assert RUNS not in families(registry) and "orders" in families(registry)
handle.shutdown()
"""
    assert in_a_process(PAGE + script).stderr == ""


def test_a_metric_whose_name_the_application_has_is_left_out_and_logged_once() -> None:
    script = """
logged()
registry = CollectorRegistry(target_info={"service": "shop"})
Counter("traced_tools_tool_decisions", "Mine.", registry=registry).inc(7)
configure(prometheus=registry)
run()
for _ in range(2):
    text = open_metrics(registry).decode()
assert text.count("# TYPE traced_tools_tool_decisions counter") == text.count("# TYPE target info") == 1
assert "traced_tools_tool_decisions_total 7.0" in text and RUNS in text
"""
    (line,) = [line for line in in_a_process(PAGE + script).stdout.splitlines() if "not, or only partly" in line]
    assert "traced_tools_tool_decisions is not" in line
    assert "a metric of the application has the same name" in line


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
def test_a_forked_child_serves_its_own_runs_in_its_copy_of_the_registry() -> None:
    script = """
warnings.simplefilter("ignore")
logged()
registry = CollectorRegistry()
configure(prometheus=registry)
def runs():
    return registry.get_sample_value(f"{RUNS}_count", {"gen_ai_agent_name": "assistant",
        "gen_ai_operation_name": "invoke_agent", "gen_ai_provider_name": "scripted"}) or sum(
        sample.value for family in registry.collect() for sample in family.samples if sample.name == f"{RUNS}_count")
run(); run()
assert runs() == 2
if not os.fork():
    configure(prometheus=registry)
    assert runs() == 0
    run()
    assert runs() == 1
    os._exit(0)
raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    assert in_a_process(PAGE + script).stdout == ""


def test_the_multi_process_mode_of_prometheus_client_is_warned_of() -> None:
    script = "logged()\nconfigure(prometheus=CollectorRegistry())"
    lines = in_a_process(PAGE + script, PROMETHEUS_MULTIPROC_DIR="/tmp").stdout
    assert "PROMETHEUS_MULTIPROC_DIR is set: the registry has the runs of this process only" in lines


def test_a_targets_file_needs_an_address() -> None:
    from prometheus_client import CollectorRegistry

    with pytest.raises(ConfigurationError, match="prometheus_targets needs a server"):
        configure(prometheus=CollectorRegistry(), prometheus_targets="targets.json")
