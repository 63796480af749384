"""The figures in the README of the collector and in docs/cost-and-volume.md are those of today's code."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from random import randbytes
from types import ModuleType
from typing import Any

import httpx
import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

from tests import yaml_files
from tests.judges.collector import CONFIGS, BackEnd, collector
from tests.waiting import until

pytestmark = pytest.mark.slow
PAGES = (CONFIGS / "README.md", CONFIGS.parents[1] / "docs" / "cost-and-volume.md")


@pytest.fixture(scope="module")
def sizing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("collector_sizing", CONFIGS / "sizing.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # its dataclass looks its module up
    spec.loader.exec_module(module)
    return module


def figures(row: str) -> list[float]:
    """Return the figures of a row of a table; those with two decimals vary with the ids, which are random."""
    return [float(each) for cell in row.split("|")[2:] for each in re.findall(r"^ ([\d.]+)", cell)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_pages_have_what_a_run_emits(sizing: ModuleType, page: Path) -> None:
    text = page.read_text()
    for row in map(str, sizing.measured()):
        name = re.escape(row.split("|")[1])
        stated = re.search(rf"^\|{name}\|.*$", text, re.MULTILINE)
        assert stated is not None, f"{page.name} needs the row {row}"
        assert figures(stated[0]) == pytest.approx(figures(row), rel=0.1, abs=0.05), f"{page.name} needs the row {row}"


def test_the_page_on_volume_has_the_series_of_an_agent(sizing: ModuleType) -> None:
    one, more = sizing.prometheus_series()
    assert f"one tool has {one} series in Prometheus" in PAGES[1].read_text()
    assert one == more


def test_the_rules_on_the_page_on_volume_are_those_of_the_tail_tier() -> None:
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", PAGES[1].read_text(), re.DOTALL | re.MULTILINE)
    quoted = {rule["name"]: rule for rule in yaml_files.load(block)["policies"]}
    quoted["share_of_the_rest"]["probabilistic"]["sampling_percentage"] = "${env:KEPT_PERCENT:-5}"
    tail = yaml_files.load((CONFIGS / "tail.yaml").read_text())["processors"]["tail_sampling"]["policies"]
    assert quoted == {rule["name"]: rule for rule in tail if rule["name"] in quoted}


def test_a_trace_that_is_held_takes_about_three_times_its_size(sizing: ModuleType, tmp_path: Path) -> None:
    message: Any = encode_spans(sizing.emitted(4, "hooks")["spans"])
    spans = [span for of in message.resource_spans for scope in of.scope_spans for span in scope.spans]
    variables = {
        "DECISION_WAIT_AFTER_ROOT": "10m",
        "DECISION_WAIT": "10m",
        "GOGC": "10",  # so that the heap has little garbage
    }
    with BackEnd() as store, collector(tmp_path / "tail", ["tail.yaml"], variables) as tail:
        variables = {"TAIL_GRPC_PORT": tail.port("GRPC"), "METRICS_ENDPOINT": store.url}

        def hold(copies: int) -> float:
            """Have the tail tier hold more traces, and return its heap."""
            sent = tail.total("otelcol_receiver_accepted_spans") + copies * len(spans)
            for _ in range(copies):
                ids: dict[bytes, bytes] = {}
                for span in spans:
                    span.trace_id = ids.setdefault(span.trace_id, randbytes(16))
                body = message.SerializeToString()
                headers = {"Content-Type": "application/x-protobuf"}
                assert httpx.post(f"{gateway.address}/v1/traces", content=body, headers=headers).is_success
            until(lambda: tail.total("otelcol_receiver_accepted_spans") == sent)
            # The collector reads its heap at most once a second, so the first answer may be of before.
            heap = "otelcol_process_runtime_heap_alloc_bytes"
            stale = tail.total(heap)
            until(lambda: tail.total(heap) != stale)
            return tail.total(heap)

        with collector(tmp_path / "gateway", ["gateway.yaml"], variables) as gateway:
            before, after = hold(1), hold(60)
    assert 2 < (after - before) / (60 * len(message.SerializeToString())) < 4
