"""What applications send through the agent, the gateway and the tail tier reaches the back ends complete and clean."""

from __future__ import annotations

import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from math import inf
from pathlib import Path
from time import time_ns
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import Status, StatusCode

from tests.captured import Telemetry
from tests.deploy.test_collector import SETS
from tests.judges.collector import (
    CONFIGS,
    PROGRAM,
    TO_HAVE_IT,
    BackEnd,
    Collector,
    attributes,
    collector,
    free_ports,
)
from tests.judges.programs import Agent, agent, program
from tests.markers import MARKER, everything
from tests.observe.exported import holds_marker
from tests.waiting import until
from traced_tools.core.enums import DECISIONS, STOP_REASONS, CaptureMode
from traced_tools.demo import OUTCOMES, Scenario
from traced_tools.observe import names
from traced_tools.otel.exporting import log_pipeline, metric_pipeline, trace_pipeline
from traced_tools.otel.memory import FinishedEvent
from traced_tools.testing.reply import Delay, Fault

pytestmark = pytest.mark.slow

SETTINGS = {
    "DECISION_WAIT_AFTER_ROOT": "2s",
    "DECISION_WAIT": "15s",
    "KEPT_PERCENT": "20",
    "LONG_RUN_MILLISECONDS": "20000",
    "METRICS_INTERVAL": "1s",
    "TOOL_NAMES": "[a-z_]+",
}
OTHER = "other_instrumentation"
"""The scope of telemetry that traced_tools does not emit."""
CONTENT = {name for each in (*names.SPANS, *names.EVENTS.values()) for name in each.content} - {names.CONTENT_TRUNCATED}
REFUSED = {*DECISIONS} - {"allowed", "approved", "answered"}
CUT_SHORT = {*STOP_REASONS} - {"answered", "return_direct", "advisor", "awaiting_approval"}
IS_AUDIT = "traced_tools.audit."


@dataclass
class Chain:
    """An agent, a gateway and a collector of the tail tier, and the back ends behind them."""

    agent: Collector
    gateway: Collector
    tail: Collector
    store: BackEnd
    archive: BackEnd


@contextmanager
def chain(folder: Path) -> Iterator[Chain]:
    with BackEnd() as store, BackEnd() as archive:
        variables = {**SETTINGS, "AUDIT_ENDPOINT": archive.url}
        variables.update({f"{signal}_ENDPOINT": store.url for signal in ("TRACES", "METRICS", "LOGS")})
        with collector(folder / "tail", ["tail.yaml"], variables) as tail:
            variables["TAIL_GRPC_PORT"] = tail.port("GRPC")
            with collector(folder / "gateway", ["gateway.yaml", "audit.yaml"], variables) as gateway:
                variables["GATEWAY_ENDPOINT"] = gateway.address
                with collector(folder / "agent", ["agent.yaml"], variables) as first:
                    yield Chain(first, gateway, tail, store, archive)


class Application(Telemetry):
    """Telemetry that is captured and also sent, with the pipelines of `traced_tools.configure`."""

    def __init__(self, url: str, capture: CaptureMode | None = None) -> None:
        super().__init__(capture)
        self._sent = [trace_pipeline(url)[0], metric_pipeline(url)[0], log_pipeline(url)[0]]
        self.tracer_provider.add_span_processor(self._sent[0])
        self.meter_provider.add_metric_reader(self._sent[1])
        self.logger_provider.add_log_record_processor(self._sent[2])

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        for pipeline in self._sent:
            pipeline.shutdown()

    def send(self) -> None:
        """Send what has not been sent; the meter provider itself would not flush a reader that came later."""
        for pipeline in self._sent:
            assert pipeline.force_flush()


def of_another_instrumentation(telemetry: Telemetry) -> None:
    """Put the marker wherever an instrumentation can put content."""
    made_up = f"invented_{MARKER}"
    tracer = telemetry.tracer_provider.get_tracer(OTHER, attributes={"prompt": MARKER})
    span = tracer.start_span(f"execute_tool {made_up}", attributes={names.OPERATION_NAME: names.EXECUTE_TOOL})
    span.set_attributes({names.TOOL_NAME: made_up, "llm.prompts.0.content": MARKER, names.TOOL_CALL_ARGUMENTS: MARKER})
    span.add_event("gen_ai.content.prompt", {"gen_ai.prompt": MARKER})
    span.record_exception(ValueError(MARKER))
    span.set_status(Status(StatusCode.ERROR, f"ValueError: {MARKER}"))
    span.end()
    unnamed = tracer.start_span(f"refuse_tool {made_up}")
    unnamed.set_status(StatusCode.ERROR)
    unnamed.end()
    counter = telemetry.meter_provider.get_meter(OTHER).create_counter("other.calls")
    counter.add(1, {names.TOOL_NAME: made_up, "city": MARKER, names.AGENT_NAME: "other"})
    logger = telemetry.logger_provider.get_logger(OTHER)
    logger.emit(body=f"the prompt is {MARKER}", attributes={"user.text": MARKER}, event_name="other.text")
    logger.emit(body={names.AGENT_NAME: MARKER}, attributes={names.TOOL_NAME: made_up}, event_name="other.map")


@dataclass
class Story:
    """What the applications have emitted, and the chain that it went through."""

    chain: Chain
    scenario: Application
    judged: Agent
    long_run: int

    @property
    def traces(self) -> Mapping[int, list[ReadableSpan]]:
        """The spans of each trace of the scenario."""
        found = defaultdict(list)
        for span in self.scenario.spans:
            found[span.context.trace_id].append(span)
        return found


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Have all that content can be in sent through the chain, and wait until every trace is decided."""
    with chain(tmp_path_factory.mktemp("chain")) as running:
        url, captured = running.agent.address, "SPAN_AND_EVENT"
        with Application(url, captured) as scenario:
            Scenario(seed=1).run(telemetry=scenario.options)
            of_another_instrumentation(scenario)
            began = time_ns() - 25_000_000_000
            long_run = scenario.tracer_provider.get_tracer(OTHER).start_span("long", start_time=began)
            long_run.end()
            scenario.send()
            variables = {
                "OTEL_RESOURCE_ATTRIBUTES": f"service.version=3,customer.name={MARKER}",
                "OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED": "true",
            }
            with agent("--otlp", url, "--capture", captured, **variables) as judged:
                told = Story(running, scenario, judged, long_run.get_span_context().trace_id)
                traces = len(told.traces) + len(judged.traces)
                until(
                    lambda: running.tail.total("otelcol_processor_tail_sampling_global_count_traces_sampled") == traces
                )
                yield told


def values(spans: Any, key: str) -> set[Any]:
    return {span.attributes.get(key) for span in spans}


def must_be_kept(spans: list[ReadableSpan]) -> bool:
    """Whether somebody will look for the trace of these spans."""
    return (
        any(span.status.status_code is StatusCode.ERROR for span in spans)
        or bool(values(spans, names.TOOL_DECISION) & REFUSED)
        or bool(values(spans, names.LOOP_STOP_REASON) & CUT_SHORT)
        or bool(values(spans, names.TOOL_OUTCOME) & {"timeout"})
    )


def stored(back_end: BackEnd) -> dict[int, Any]:
    """Return the spans of a back end by their ids."""
    return {int.from_bytes(span.span_id, "big"): span for span in back_end.spans()}


def arrived(story: Story, spans: list[ReadableSpan]) -> bool:
    """Whether all spans have arrived; they come soon after the decision."""
    return {span.context.span_id for span in spans} <= stored(story.chain.store).keys()


def series(metrics: list[Any], name: str, *labels: str) -> Counter[tuple[Any, ...]]:
    """Return the newest count of each series of a metric, summed by labels."""
    newest: dict[Any, Any] = {}
    for metric in metrics:
        if metric.name == name:
            for point in getattr(metric, metric.WhichOneof("data")).data_points:
                newest[tuple(sorted(attributes(point.attributes).items()))] = point
    found: Counter[tuple[Any, ...]] = Counter()
    for key, point in newest.items():
        count = point.count if hasattr(point, "count") else point.as_int or int(point.as_double)
        found[tuple(dict(key).get(label) for label in labels)] += count
    return +found


@pytest.mark.parametrize("files", SETS, ids=" + ".join)
def test_the_collector_accepts_each_configuration(files: tuple[str, ...]) -> None:
    options = [f"--config={CONFIGS / name}" for name in files]
    checked = subprocess.run([program(PROGRAM, TO_HAVE_IT), "validate", *options], capture_output=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, b"")


def test_no_content_gets_past_the_gateway(story: Story) -> None:
    emitted = everything([span["attributes"] for span in story.judged.spans])
    assert emitted.count(MARKER) > 50
    until(lambda: any(log.event_name == "other.map" for log in story.chain.store.logs()))
    until(lambda: bool(series(story.chain.store.metrics(), "other.calls")))
    for back_end in (story.chain.store, story.chain.archive):
        assert [path for path, body in back_end.bodies() if holds_marker(body)] == []


def test_a_name_that_the_model_made_up_is_replaced_wherever_it_is(story: Story) -> None:
    spans = [span for span in stored(story.chain.store).values() if MARKER not in span.name]
    of_others = {span.name: attributes(span.attributes) for span in spans if span.name.endswith("_tool _unknown")}
    assert of_others["execute_tool _unknown"][names.TOOL_NAME] == names.UNKNOWN_TOOL
    assert of_others["refuse_tool _unknown"][names.TOOL_NAME] == names.UNKNOWN_TOOL
    counted = series(story.chain.store.metrics(), "other.calls", names.TOOL_NAME, names.AGENT_NAME)
    assert counted == {(names.UNKNOWN_TOOL, "other"): 1}


def test_a_kept_span_keeps_all_that_is_not_content(story: Story) -> None:
    kept = stored(story.chain.store)
    emitted = [span for span in story.scenario.spans if span.context.span_id in kept]
    emitted = [span for span in emitted if span.instrumentation_scope.name != OTHER]
    assert len(emitted) > 100
    for span in emitted:
        sent, found = dict(span.attributes or {}), kept[span.context.span_id]
        assert attributes(found.attributes) == {key: sent[key] for key in sent.keys() - CONTENT}
        assert (found.name, found.start_time_unix_nano, found.end_time_unix_nano, found.status.message) == (
            *(span.name, span.start_time, span.end_time, ""),
        )
        assert found.status.code == span.status.status_code.value
    keys = {key for span in kept.values() for key in attributes(span.attributes)}
    assert keys >= {names.USAGE_INPUT_TOKENS, names.TOOL_DECISION, names.LOOP_COST, names.ERROR_TYPE, names.RUN_ID}


def test_each_trace_that_somebody_will_look_for_arrives_whole(story: Story) -> None:
    needed = [spans for spans in story.traces.values() if must_be_kept(spans)]
    assert values([span for spans in needed for span in spans], names.LOOP_STOP_REASON) >= CUT_SHORT
    assert values([span for spans in needed for span in spans], names.TOOL_DECISION) >= REFUSED - {"rejected"}
    until(lambda: all(arrived(story, spans) for spans in needed))


def test_a_long_trace_arrives(story: Story) -> None:
    until(lambda: arrived(story, story.traces[story.long_run]))


def test_a_small_share_of_the_other_traces_arrives_and_none_in_part(story: Story) -> None:
    rest = {trace: spans for trace, spans in story.traces.items() if not must_be_kept(spans)}
    del rest[story.long_run]
    found = {int.from_bytes(span.trace_id, "big") for span in story.chain.store.spans()}
    kept = [spans for trace, spans in rest.items() if trace in found]
    assert 0 < len(kept) < len(rest) / 2
    until(lambda: all(arrived(story, spans) for spans in kept))


def test_metrics_from_spans_agree_with_those_that_the_runs_counted(story: Story) -> None:
    labels = (names.OPERATION_NAME, names.AGENT_NAME, names.TOOL_NAME, names.ERROR_TYPE)
    counted = {
        names.INVOKE_AGENT: names.INVOKE_AGENT_DURATION.name,
        names.EXECUTE_TOOL: names.EXECUTE_TOOL_DURATION.name,
        names.RETRIEVAL: names.TOOL_SEARCHES.name,
        names.CHAT: names.INFERENCE_DURATION.name,
        names.EMBEDDINGS: names.EMBEDDINGS_DURATION.name,
    }
    expected = Counter({(names.EXECUTE_TOOL, None, names.UNKNOWN_TOOL, None): 1})  # of the other instrumentation
    for operation, metric in counted.items():
        found = series(story.chain.store.metrics(), metric, *labels)
        expected.update({(operation, *key[1:]): count for key, count in found.items()})
    assert expected.total() > 500
    until(lambda: series(story.chain.store.metrics(), "traces.span.metrics.calls", *labels) == expected)


def test_no_two_series_become_one(story: Story) -> None:
    points = Counter(
        (str(of.resource), scope.scope.name, metric.name, str(attributes(point.attributes)), point.time_unix_nano)
        for request in story.chain.store.messages("/v1/metrics")
        for of in request.resource_metrics
        for scope in of.scope_metrics
        for metric in scope.metrics
        for point in getattr(metric, metric.WhichOneof("data")).data_points
    )
    assert any(name.startswith("otel.sdk.") for _, _, name, _, _ in points)
    assert [point for point, count in points.items() if count > 1] == []


def test_the_service_graph_has_a_node_for_the_provider(story: Story) -> None:
    def edges() -> set[tuple[str, str]]:
        found = series(story.chain.store.metrics(), "traces_service_graph_request_total", "client", "server")
        return {(client.partition(":")[0] + ":python", to) for client, to in found}

    until(lambda: ("unknown_service:python", "openai") in edges())


def test_each_event_arrives_with_its_name_where_loki_finds_it(story: Story) -> None:
    def emitted() -> Counter[Any]:
        return Counter((each.name, each.trace_id) for each in story.scenario.events if IS_AUDIT not in each.name)

    def found() -> Counter[Any]:
        logs = [log for log in story.chain.store.logs() if int(log.trace_id.hex() or "0", 16) in story.traces]
        assert all(attributes(log.attributes)["event_name"] == log.body.string_value == log.event_name for log in logs)
        return Counter((log.event_name, log.trace_id.hex()) for log in logs)

    assert emitted().total() > 500
    until(lambda: found() == Counter({key: count for key, count in emitted().items() if key[1] is not None}))


# The audit stream.


def hashes(events: list[FinishedEvent]) -> set[Any]:
    """Return the hashes of the audit records that were emitted."""
    return {each.attributes[names.AUDIT_HASH] for each in events if IS_AUDIT in each.name}


def archived(back_end: BackEnd) -> list[Any]:
    """Return the hashes of the audit records in a back end, doubles included, after checking each record."""
    found = []
    for log in back_end.logs():
        assert log.event_name.startswith(IS_AUDIT)
        found.append(attributes(log.attributes)[names.AUDIT_HASH])
        assert sha256(log.body.string_value.encode()).hexdigest() == found[-1]
    return found


def test_audit_records_go_to_the_archive_alone_and_each_once(story: Story) -> None:
    until(lambda: sorted(archived(story.chain.archive)) == sorted(hashes(story.scenario.events)))
    assert not [log for log in story.chain.store.logs() if IS_AUDIT in log.event_name]


def test_no_audit_record_is_lost_while_the_archive_is_down_and_collectors_are_killed(tmp_path: Path) -> None:
    ports, gateway_ports = free_ports(), free_ports()
    address = f"http://127.0.0.1:{ports['LISTEN_HTTP_PORT']}"
    behind = f"http://127.0.0.1:{gateway_ports['LISTEN_HTTP_PORT']}"
    audited = Scenario(without=OUTCOMES.keys() - {"audited"})

    with BackEnd() as archive, BackEnd() as store, Application(address) as application:

        def gateway() -> AbstractContextManager[Collector]:
            variables = {**gateway_ports, "AUDIT_ENDPOINT": archive.url, "LOGS_ENDPOINT": store.url}
            return collector(tmp_path / "gateway", ["gateway.yaml", "audit.yaml"], variables)

        def first() -> AbstractContextManager[Collector]:
            return collector(tmp_path / "agent", ["agent.yaml"], {**ports, "GATEWAY_ENDPOINT": behind})

        def audit() -> None:
            audited.run(count=10, telemetry=application.options)
            application.send()

        archive.keeps, archive.answer = False, Delay(inf)
        with gateway() as killed_gateway, first() as killed_agent:
            audit()
            until(lambda: len(archive.received) > 0)
            killed_gateway.kill()  # records are on their way to an archive that hangs
            audit()
            killed_agent.kill()  # records wait for the gateway
        archive.keeps, archive.answer = True, Fault.CUT  # it stores records, but the gateway does not learn of it
        with gateway(), first():
            until(lambda: len(archived(archive)) > 0)
            archive.answer = BackEnd.OK
            audit()
            emitted = hashes(application.events)
            assert len(emitted) == 30 * 4
            until(lambda: set(archived(archive)) == emitted and len(archived(archive)) > len(emitted))
