"""All sample runs emit the same telemetry by the fast path as by the SDK's own tracer and instruments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan

from tests.captured import Telemetry
from tests.fast_path.paths import path
from tests.fast_path.test_spans import comparable
from tests.observe.all_runs import RUNS, Prices
from tests.observe.comparable import LEDGER, TIMES, emitted_events, lineage, point_shape
from tests.observe.test_closed_list import SMALL
from tests.sweeps import sweep
from traced_tools import ChatClient
from traced_tools.fast_path.meter import FastInstrument
from traced_tools.fast_path.tracer import FastTracer
from traced_tools.observe import names
from traced_tools.observe.providers import instruments_of, tracing_of
from traced_tools.testing import ScriptedChatModel

IDS = {"traceId", "spanId", "parentSpanId"}
_ENTRY = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def otlp(span: ReadableSpan) -> Any:
    """A span as OTLP has it, without times and ids."""
    request = comparable(MessageToDict(encode_spans([span])))
    (exported,) = request["resourceSpans"][0]["scopeSpans"][0]["spans"]
    exported["attributes"] = [each for each in exported["attributes"] if each["key"] not in LEDGER]
    for each in exported["attributes"]:
        if each["key"] in TIMES:
            each["value"] = "…"
    for identified in (exported, *exported.get("links", ())):
        for each in IDS & identified.keys():
            del identified[each]
    return request


@sweep(run=[each.__name__ for each in RUNS], capture=["NO_CONTENT", "SPAN_AND_EVENT"])
def test_a_run_emits_the_same_telemetry_by_both_paths(run: str, capture: str) -> None:
    (perform,) = [each for each in RUNS if each.__name__ == run]
    fast, by_sdk = emitted(perform, capture, fast=True), emitted(perform, capture, fast=False)
    for part in (
        lineage,
        emitted_events,
        lambda telemetry: map(otlp, telemetry.spans),
        lambda telemetry: map(point_shape, (each for each in telemetry.metrics if each.name != names.RUN_TIME.name)),
    ):
        assert texts(part(fast)) == texts(part(by_sdk))


def texts(parts: Iterable[Any]) -> list[str]:
    """Each part as text, in order, without the port of the server and the ids of entries of a memory."""
    return sorted(_ENTRY.sub("…", re.sub(r"(server\.port\D+)\d+", r"\1…", repr(each))) for each in parts)


def emitted(perform: Callable[[Telemetry], None], capture: str, *, fast: bool) -> Telemetry:
    telemetry = Telemetry(SMALL if capture == "SPAN_AND_EVENT" else None, prices=Prices(), openinference=True)
    with path(fast=fast):
        instruments = instruments_of(telemetry.meter_provider)
        assert instruments is not None
        assert isinstance(tracing_of(telemetry.tracer_provider).tracer, FastTracer) is fast
        assert isinstance(instruments.tool_calls, FastInstrument) is fast
        perform(telemetry)
    return telemetry


@pytest.mark.parametrize("address", [ip_address("127.0.0.1"), ["a", "b"]], ids=["ip_address", "list"])
def test_the_server_of_a_model_of_the_application_is_emitted_as_text(address: Any) -> None:
    for fast in (True, False):
        telemetry, model = Telemetry(), ScriptedChatModel(["hi"])
        model.server_address = address
        with path(fast=fast):
            ChatClient(model, telemetry=telemetry.options).prompt("q").call()
        (chat,) = (span for span in telemetry.spans if span.name.startswith("chat"))
        assert (chat.attributes or {})["server.address"] == str(address)
        assert str(address) in str([point_shape(each) for each in telemetry.metrics])
