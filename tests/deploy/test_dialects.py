"""Boards show the spans of OpenInference, OpenLLMetry and logfire, and those of ours as before."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import StatusCode

from tests.captured import Telemetry
from tests.dashboards.asked import IN_PANELS, RULES, Asked
from tests.deploy.test_collector import merged
from tests.judges.collector import BackEnd, Collector, attributes, collector
from tests.judges.dialects import DIALECTS, InstrumentedProgram, instrumented_programs, model_server
from tests.judges.programs import ROOT, program
from tests.judges.prometheus import PACKAGE, scraping
from tests.markers import MARKER
from tests.observe.exported import holds_marker
from tests.waiting import until
from traced_tools import ChatClient, ToolCall
from traced_tools.observe import names
from traced_tools.otel.exporting import metric_pipeline, trace_pipeline
from traced_tools.otel.prometheus_names import label_name, make_family
from traced_tools.testing import ReplayServer, Reply, ScriptedChatModel

FILES = ("gateway.yaml", "dialects.yaml")
PAGE = ROOT / "docs" / "existing-traces.md"
HISTOGRAMS = (
    names.INVOKE_AGENT_DURATION,
    names.EXECUTE_TOOL_DURATION,
    names.INFERENCE_DURATION,
    names.INFERENCE_TIME_TO_FIRST_CHUNK,
    names.INPUT_TOKENS_A_CALL,
    names.OUTPUT_TOKENS_A_CALL,
    names.EMBEDDINGS_DURATION,
    names.EMBEDDINGS_INPUT_TOKENS,
)
COUNTERS = {names.INPUT_TOKENS_USED: names.INPUT_TOKENS_A_CALL, names.OUTPUT_TOKENS_USED: names.OUTPUT_TOKENS_A_CALL}
"""The counters that are made, each with the histogram that has its sum."""
_RANGE = 60
"""The seconds that boards show. They are whole, so that the last step is the end."""
ROUNDS = 2
"""How often each program runs everything: a rate needs a value that grows while Prometheus looks."""


# The spans of a round.

Attributes = Mapping[str, Any]
CHAT, TOOL, RUN = "chat gpt-x", "execute_tool get_weather", "invoke_agent travel"
OF_CHAT = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": "gpt-x"}
OF_TOOL = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "get_weather"}
OF_RUN = {"gen_ai.operation.name": "invoke_agent"}
OF_EMBEDDING = {
    "gen_ai.operation.name": "embeddings",
    "gen_ai.provider.name": "openai",
    "gen_ai.request.model": "embed-x",
    "gen_ai.usage.input_tokens": 5,
}
OF_AGENT = {"gen_ai.agent.name": "travel", "gen_ai.conversation.id": "c-1"}
ANSWERED = {
    "gen_ai.response.model": "gpt-x-2026",
    "gen_ai.usage.input_tokens": 40,
    "gen_ai.usage.output_tokens": 8,
    "gen_ai.usage.cache_read.input_tokens": 16,
}
REASONED = {"gen_ai.usage.reasoning.output_tokens": 3}
STREAMED = {"gen_ai.request.stream": True, "gen_ai.response.time_to_first_chunk": "positive"}
STOPPED = {"gen_ai.response.finish_reasons": ("stop",)}
WITH_ID = {"gen_ai.response.id": "answer-1"}
AT_SERVER = {"server.address": "127.0.0.1", "server.port": "the model's"}
CONVERSATION = {"gen_ai.conversation.id": "c-1"}


def called(reason: str) -> Attributes:
    """Return the finish reason of an answer that asks for a tool."""
    return {"gen_ai.response.finish_reasons": (reason,)}


def failed(error: str) -> Attributes:
    return {"error.type": error}


def of_kind(kind: str) -> Attributes:
    return {"openinference.span.kind": kind}


def spans_of(name: str, *parts: Attributes, times: int = 1) -> list[tuple[str, Attributes]]:
    """Return spans with a name and the attributes of all parts."""
    return [(name, {key: value for part in parts for key, value in part.items()})] * times


LLM, OPENINFERENCE_AGENT = of_kind("LLM"), [OF_AGENT, OF_RUN, of_kind("CHAIN")]
SPANS = {
    "openinference": [
        *spans_of(CHAT, OF_CHAT, ANSWERED, REASONED, STOPPED, CONVERSATION, LLM),
        *spans_of(CHAT, OF_CHAT, ANSWERED, REASONED, STOPPED, STREAMED, CONVERSATION, LLM),
        *spans_of(CHAT, OF_CHAT, failed("BadRequestError"), CONVERSATION, LLM),
        *spans_of("embeddings embed-x", OF_EMBEDDING, CONVERSATION, of_kind("EMBEDDING")),
        *spans_of(CHAT, OF_CHAT, ANSWERED, REASONED, called("tool_calls"), OF_AGENT, LLM, times=2),
        *spans_of(CHAT, OF_CHAT, ANSWERED, REASONED, STOPPED, OF_AGENT, LLM),
        *spans_of(CHAT, OF_CHAT, failed("OpenAIInvalidRequestError"), OF_AGENT, LLM),
        *spans_of(TOOL, OF_TOOL, OF_AGENT, of_kind("TOOL")),
        *spans_of(TOOL, OF_TOOL, failed("LookupError"), OF_AGENT, of_kind("TOOL")),
        *spans_of(RUN, *OPENINFERENCE_AGENT),
        *spans_of(RUN, *OPENINFERENCE_AGENT, failed("LookupError")),
        *spans_of(RUN, *OPENINFERENCE_AGENT, failed("OpenAIInvalidRequestError")),
    ],
    "openllmetry": [
        *spans_of(CHAT, OF_CHAT, ANSWERED, REASONED, STOPPED, WITH_ID, AT_SERVER),
        *spans_of(CHAT, OF_CHAT, ANSWERED, STOPPED, STREAMED, WITH_ID, AT_SERVER),
        *spans_of(CHAT, OF_CHAT, failed("BadRequestError"), AT_SERVER),
        *spans_of(
            "embeddings embed-x",
            OF_EMBEDDING,
            AT_SERVER,
            {"gen_ai.response.model": "embed-x", "gen_ai.usage.cache_read.input_tokens": 0},
        ),
        *spans_of(CHAT, OF_CHAT, ANSWERED, called("tool_call"), WITH_ID, OF_AGENT, times=2),
        *spans_of(CHAT, OF_CHAT, ANSWERED, STOPPED, WITH_ID, OF_AGENT),
        *spans_of(CHAT, OF_CHAT, failed("OpenAIInvalidRequestError"), OF_AGENT, {"gen_ai.response.model": "gpt-x"}),
        *(
            span
            for error in ({}, failed("LookupError"))
            for span in spans_of(
                TOOL, OF_TOOL, OF_AGENT, error, {"gen_ai.tool.type": "function", "gen_ai.provider.name": "langgraph"}
            )
        ),
        *(
            span
            for error in ({}, failed("LookupError"), failed("OpenAIInvalidRequestError"))
            for span in spans_of(RUN, OF_RUN, OF_AGENT, error, {"gen_ai.provider.name": "langgraph"})
        ),
    ],
    "logfire": [
        *spans_of(CHAT, OF_CHAT, ANSWERED, STOPPED, WITH_ID),
        *spans_of(CHAT, OF_CHAT, {"gen_ai.response.model": "gpt-x"}),  # a stream: its log has the tokens
        *spans_of(CHAT, OF_CHAT, {"gen_ai.response.model": "gpt-x"}, failed("BadRequestError")),
        *spans_of("embeddings embed-x", OF_EMBEDDING, {"gen_ai.response.model": "embed-x"}),
        *spans_of(CHAT, OF_CHAT, ANSWERED, REASONED, called("tool_call"), WITH_ID, AT_SERVER, OF_AGENT, times=2),
        *spans_of(CHAT, OF_CHAT, ANSWERED, REASONED, STOPPED, WITH_ID, AT_SERVER, OF_AGENT),
        *spans_of(
            CHAT,
            OF_CHAT,
            {"gen_ai.response.model": "gpt-x"},
            failed("ModelRequestRejectedError"),
            AT_SERVER,
            OF_AGENT,
        ),
        *spans_of(TOOL, OF_TOOL, OF_AGENT, {"gen_ai.tool.call.id": "call-1"}),
        *spans_of(TOOL, OF_TOOL, OF_AGENT, {"gen_ai.tool.call.id": "call-1"}, failed("LookupError")),
        *(
            span
            for usage in (
                {"gen_ai.usage.input_tokens": 80, "gen_ai.usage.output_tokens": 16},
                {"gen_ai.usage.input_tokens": 40, "gen_ai.usage.output_tokens": 8, **failed("LookupError")},
                failed("ModelRequestRejectedError"),
            )
            for span in spans_of(RUN, OF_RUN, OF_AGENT, {"gen_ai.request.model": "gpt-x"}, usage)
        ),
    ],
}
"""The spans that come out for each dialect, of operations that boards show."""
OPERATIONS = {"chat", "embeddings", "execute_tool", "invoke_agent"}


# The configuration.


def connectors() -> dict[str, dict[str, Any]]:
    """Return the configuration of the connector of each metric."""
    return {
        config["namespace"]: config
        for name, config in merged(FILES)["connectors"].items()
        if name.startswith("span_metrics/")
    }


def seconds(duration: str) -> float:
    return float(duration.removesuffix("ms")) / 1000 if duration.endswith("ms") else float(duration.removesuffix("s"))


def test_each_metric_has_the_labels_and_the_buckets_of_ours() -> None:
    made = connectors()
    assert made.keys() == {metric.name.removesuffix(".duration") for metric in HISTOGRAMS}
    for metric in HISTOGRAMS:
        config = made[metric.name.removesuffix(".duration")]
        assert tuple(label["name"] for label in config["dimensions"]) == metric.attributes
        buckets = config["histogram"]["explicit"]["buckets"]
        assert tuple(seconds(bucket) for bucket in buckets) == pytest.approx(metric.boundaries)


def statements() -> list[str]:
    """Return the statements of the mapping, each in one line."""
    groups = merged(FILES)["processors"]["transform/dialects"]["trace_statements"]
    return [" ".join(statement.split()) for group in groups for statement in group["statements"]]


def test_no_statement_is_for_spans_of_ours() -> None:
    groups = merged(FILES)["processors"]["transform/dialects"]["trace_statements"]
    routes = merged(FILES)["connectors"]["routing/dialects"]["table"]
    conditions = [group["conditions"][0] for group in groups] + [route["condition"] for route in routes]
    assert len(conditions) == 13
    assert [each for each in conditions if not each.startswith(f'instrumentation_scope.name != "{names.SCOPE}"')] == []


def test_the_page_lists_each_attribute_that_is_mapped() -> None:
    plain = re.compile(r'set\(span\.attributes\["([^"]+)"\], \[?span\.(?:attributes|cache)((?:\["[^"]+"\])+)')
    mapped = [(copy[1], ".".join(re.findall(r'"([^"]+)"', copy[2]))) for copy in map(plain.match, statements()) if copy]
    (table,) = re.findall(r"^\| attribute \| becomes \|\n(.*?)^$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| `([^`]+)`[^|]*\| `([^`]+)` \|", table, re.MULTILINE)
    assert Counter((target, source) for source, target in rows) == Counter(mapped)


def test_each_target_of_the_mapping_passes_the_gateway_or_is_content() -> None:
    targets = {found for each in statements() for found in re.findall(r'^set\(span\.attributes\["([^"]+)"\]', each)}
    assert targets - names.ATTRIBUTES.keys() == set()


# Real instrumentations through a real collector.


@dataclass
class Gateway:
    """A gateway with the mapping, and the collector of the tail tier that keeps every trace.

    Attributes:
        collector: the gateway.
        store: what it sends to.
    """

    collector: Collector
    store: BackEnd

    def spans(self, service: str) -> list[Any]:
        """Return the spans of a service that have arrived."""
        return [
            span
            for request in self.store.messages("/v1/traces")
            for of in request.resource_spans
            if attributes(of.resource.attributes).get("service.name") == service
            for scope in of.scope_spans
            for span in scope.spans
        ]

    def metrics(self, service: str) -> dict[tuple[str, str, str], dict[tuple[tuple[str, Any], ...], Any]]:
        """Return the newest point of each series of a service, by scope, name and unit of the metric and by labels."""
        found: dict[tuple[str, str, str], dict[tuple[tuple[str, Any], ...], Any]] = {}
        for request in self.store.messages("/v1/metrics"):
            for of in request.resource_metrics:
                if attributes(of.resource.attributes).get("service.name") == service:
                    for scope in of.scope_metrics:
                        for metric in scope.metrics:
                            series = found.setdefault((scope.scope.name, metric.name, metric.unit), {})
                            for point in getattr(metric, metric.WhichOneof("data")).data_points:
                                labels = attributes(point.attributes)
                                labels.pop("collector.instance.id", None)
                                series[tuple(sorted(labels.items()))] = point
        return found

    def made(self, service: str) -> dict[str, dict[tuple[tuple[str, Any], ...], Any]]:
        """Return the newest points of the metrics that the gateway has made of spans for boards, by name."""
        return {
            name: series
            for (scope, name, _), series in self.metrics(service).items()
            if scope == "spanmetricsconnector" and name.startswith("gen_ai.")
        }


@contextmanager
def gateway(folder: Path, *further: str) -> Iterator[Gateway]:
    """Run a gateway with the mapping and further configuration files."""
    with BackEnd() as store:
        variables = {f"{signal}_ENDPOINT": store.url for signal in ("TRACES", "METRICS", "LOGS")}
        variables |= {"METRICS_INTERVAL": "1s", "KEPT_PERCENT": "100", "DECISION_WAIT_AFTER_ROOT": "1s"}
        with collector(folder / "tail", ["tail.yaml"], variables) as tail:
            variables["TAIL_GRPC_PORT"] = tail.port("GRPC")
            with collector(folder / "gateway", [*FILES, *further], variables) as running:
                yield Gateway(running, store)


def as_text(gateway: Gateway, service: str) -> str:
    """Return the metrics of a service as a Prometheus that receives OTLP stores them."""
    lines = []
    for (_, name, unit), series in gateway.metrics(service).items():
        for labels, point in series.items():
            written = [f'{label_name(key)}="{value}"' for key, value in labels]
            lines += (
                histogram_lines(name, unit, written, point)
                if hasattr(point, "bucket_counts")
                else [
                    line(
                        make_family(name, "", unit, "counter").name + "_total", written, point.as_int or point.as_double
                    )
                ]
            )
    return "\n".join([*lines, ""])


def histogram_lines(name: str, unit: str, labels: list[str], point: Any) -> Iterator[str]:
    family = make_family(name, "", unit, "histogram").name
    counts = accumulate(point.bucket_counts)
    for bound, count in zip([*point.explicit_bounds, "+Inf"], counts, strict=True):
        yield line(f"{family}_bucket", [*labels, f'le="{bound}"'], count)
    yield line(f"{family}_count", labels, point.count)
    yield line(f"{family}_sum", labels, point.sum)


def line(name: str, labels: list[str], value: float) -> str:
    return f"{name}{{{','.join(labels)}}} {value}"


@dataclass
class Shown:
    """The programs, played, and what boards show of them.

    Attributes:
        gateway: what everything went through.
        model_port: the port of the model's server.
        asked: a Prometheus that has scraped the metrics, for the boards.
    """

    gateway: Gateway
    model_port: int
    asked: Asked


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    program("prometheus", PACKAGE)
    folder = tmp_path_factory.mktemp("dialects")
    with ExitStack() as stack:
        mapping = stack.enter_context(gateway(folder))
        model = stack.enter_context(model_server())
        log = stack.enter_context((folder / "log.txt").open("w"))
        url = mapping.collector.address
        programs = [
            each
            for dialect in DIALECTS
            for each in stack.enter_context(instrumented_programs(dialect, url, model.url, log))
        ]
        addresses = {dialect: stack.enter_context(scraped(mapping, dialect)) for dialect in DIALECTS}
        play(mapping, programs, 1)
        prometheus = stack.enter_context(scraping(addresses, mkdir(folder / "prometheus"), rules=RULES, every="1s"))
        prometheus.evaluated_after(time.time())
        play(mapping, programs, ROUNDS)
        end = prometheus.evaluated_after(time.time())
        yield Shown(mapping, int(model.url.rpartition(":")[2]), Asked(prometheus, end - _RANGE, end, 1, "20s", ""))


def mkdir(folder: Path) -> Path:
    folder.mkdir()
    return folder


@contextmanager
def scraped(gateway: Gateway, service: str) -> Iterator[str]:
    """Serve the metrics of a service; yield the address."""
    with ReplayServer(lambda _: Reply(as_text(gateway, service).encode(), content_type="text/plain")) as server:
        yield server.url.removeprefix("http://")


def play(gateway: Gateway, programs: list[InstrumentedProgram], rounds: int) -> None:
    """Have all programs run everything once more, and wait until the metrics of so many rounds have arrived."""
    for instrumented in programs:
        instrumented.play()
    until(lambda: all(is_complete(gateway, dialect, rounds) for dialect in DIALECTS))


def is_complete(gateway: Gateway, dialect: str, rounds: int) -> bool:
    made = gateway.made(dialect)
    expected = Counter(span["gen_ai.operation.name"] for _, span in SPANS[dialect])
    return all(
        sum(point.count for point in made.get(metric.name, {}).values()) == expected[operation] * rounds
        for metric, operation in (
            (names.INFERENCE_DURATION, "chat"),
            (names.EMBEDDINGS_DURATION, "embeddings"),
            (names.EXECUTE_TOOL_DURATION, "execute_tool"),
            (names.INVOKE_AGENT_DURATION, "invoke_agent"),
        )
    )


of_each_dialect = pytest.mark.parametrize("dialect", DIALECTS)


@pytest.mark.slow
@of_each_dialect
def test_each_span_gets_the_names_and_attributes_of_the_conventions(shown: Shown, dialect: str) -> None:
    def comparable(span: Any) -> tuple[str, str, bool]:
        found = attributes(span.attributes)
        if "server.port" in found:
            assert found["server.port"] == shown.model_port
            found["server.port"] = "the model's"
        if "gen_ai.response.time_to_first_chunk" in found:
            assert 0 < found["gen_ai.response.time_to_first_chunk"] < 60
            found["gen_ai.response.time_to_first_chunk"] = "positive"
        return span.name, str(sorted(found.items())), is_client(span)

    def is_client(span: Any) -> bool:
        return bool(span.kind == span.SPAN_KIND_CLIENT)

    expected = Counter(
        (name, str(sorted(span.items())), name.startswith(("chat", "embeddings"))) for name, span in SPANS[dialect]
    )

    def arrived() -> Counter[Any]:
        spans = [
            span
            for span in shown.gateway.spans(dialect)
            if attributes(span.attributes).get("gen_ai.operation.name") in OPERATIONS
        ]
        return Counter(comparable(span) for span in spans)

    until(lambda: arrived().total() == expected.total() * ROUNDS)
    assert arrived() == Counter({span: count * ROUNDS for span, count in expected.items()})


@pytest.mark.slow
@of_each_dialect
def test_each_span_is_counted_once_with_its_labels(shown: Shown, dialect: str) -> None:
    made = shown.gateway.made(dialect)
    for metric, operation in (
        (names.INFERENCE_DURATION, "chat"),
        (names.EMBEDDINGS_DURATION, "embeddings"),
        (names.EXECUTE_TOOL_DURATION, "execute_tool"),
        (names.INVOKE_AGENT_DURATION, "invoke_agent"),
    ):
        spans = [span for _, span in SPANS[dialect] if span["gen_ai.operation.name"] == operation]
        labels = Counter(labels_of(span, metric.attributes, shown.model_port) for span in spans)
        counted = {series: point.count for series, point in made[metric.name].items()}
        assert counted == {series: count * ROUNDS for series, count in labels.items()}
        assert all(point.sum > 0 for point in made[metric.name].values())


def labels_of(span: Attributes, keys: tuple[str, ...], port: int) -> tuple[tuple[str, Any], ...]:
    """Return the labels that a span has, sorted."""
    labels = {key: span[key] for key in keys if key in span}
    if "server.port" in labels:
        labels["server.port"] = port
    return tuple(sorted(labels.items()))


@pytest.mark.slow
@of_each_dialect
def test_tokens_are_counted_once(shown: Shown, dialect: str) -> None:
    made = shown.gateway.made(dialect)
    for counter, histogram in COUNTERS.items():
        counted = {labels: point.as_double for labels, point in made[counter.name].items()}
        assert counted == {labels: point.sum for labels, point in made[histogram.name].items()}
    answers = 5 * ROUNDS  # two of the client, and three of the agent
    for metric, tokens in ((names.INPUT_TOKENS_A_CALL, 40), (names.OUTPUT_TOKENS_A_CALL, 8)):
        points = made[metric.name].values()
        assert (sum(point.count for point in points), sum(point.sum for point in points)) == (answers, answers * tokens)
    (embedded,) = made[names.EMBEDDINGS_INPUT_TOKENS.name].values()
    assert (embedded.count, embedded.sum) == (ROUNDS, 5 * ROUNDS)


@pytest.mark.slow
@of_each_dialect
def test_each_metric_has_the_unit_and_the_buckets_of_ours(shown: Shown, dialect: str) -> None:
    units = {name: unit for _, name, unit in shown.gateway.metrics(dialect) if name.startswith("gen_ai.")}
    registered = {metric.name: metric for metric in (*HISTOGRAMS, *COUNTERS)}
    for name, series in shown.gateway.made(dialect).items():
        assert units[name] == registered[name].unit
        for point in series.values():
            if hasattr(point, "explicit_bounds"):
                assert tuple(point.explicit_bounds) == pytest.approx(registered[name].boundaries)
    streams = {names.INFERENCE_TIME_TO_FIRST_CHUNK.name} if dialect != "logfire" else set()
    assert (
        shown.gateway.made(dialect).keys() == registered.keys() - {names.INFERENCE_TIME_TO_FIRST_CHUNK.name} | streams
    )


@pytest.mark.slow
def test_metrics_of_other_instrumentations_that_count_the_same_calls_are_dropped(shown: Shown) -> None:
    scopes = {
        scope
        for dialect in DIALECTS
        for scope, name, _ in shown.gateway.metrics(dialect)
        if re.match(r"gen_ai\.(client|invoke_agent|execute_tool)\.", name)
    }
    assert scopes == {"spanmetricsconnector"}
    others = {scope for scope, *_ in shown.gateway.metrics("openllmetry")}
    assert "opentelemetry.instrumentation.openai.v1" in others  # those that count something else


@pytest.mark.slow
def test_no_content_of_other_instrumentations_passes(shown: Shown) -> None:
    assert shown.gateway.store.spans()
    assert [path for path, body in shown.gateway.store.bodies() if holds_marker(body)] == []


# Boards.


def panels_with_data(asked: Asked) -> set[tuple[str, str]]:
    """Return the board and the title of the panels that have data of a service, and none of a service that isn't."""
    of_nothing = asked.of("nothing")
    return {(query.board, query.title) for query in IN_PANELS if asked.lines(query) and not of_nothing.lines(query)}


@pytest.mark.slow
@of_each_dialect
def test_the_page_lists_the_panels_that_have_data(shown: Shown, dialect: str) -> None:
    rows = re.findall(r"^\| `(tt-\w+)` \| ([^|]*) \| ([^|]*) \|$", PAGE.read_text(), re.MULTILINE)
    documented = {
        (board, title)
        for board, titles, dialects in rows
        for title in titles.split("; ")
        if dialect not in dialects.partition(" but ")[2]
    }
    assert panels_with_data(shown.asked.of(dialect)) == documented


# Our own spans, and names of older releases.


@pytest.mark.slow
def test_spans_of_ours_are_neither_changed_nor_counted_again(tmp_path: Path) -> None:
    def failing() -> str:
        """Fail."""
        raise LookupError(MARKER)

    with gateway(tmp_path) as mapping, Telemetry(openinference=True) as captured:
        pipelines = [trace_pipeline(mapping.collector.address)[0], metric_pipeline(mapping.collector.address)[0]]
        captured.tracer_provider.add_span_processor(pipelines[0])
        captured.meter_provider.add_metric_reader(pipelines[1])
        model = ScriptedChatModel([ToolCall("failing"), "Done."])
        client = ChatClient(model, tools=[failing], telemetry=captured.options, attributes={"session.id": "s"})
        client.prompt("?").call()
        for pipeline in pipelines:
            assert pipeline.force_flush()
            pipeline.shutdown()
        emitted = {span.context.span_id: (span.name, dict(span.attributes or {})) for span in captured.spans}
        until(lambda: len(mapping.store.spans()) == len(emitted))
        for span in mapping.store.spans():
            name, sent = emitted[int.from_bytes(span.span_id, "big")]
            sent.pop("session.id", None)  # the gateway removes it as any other attribute that it doesn't know
            assert (span.name, attributes(span.attributes)) == (name, sent)
        until(lambda: any(metric.name == "traces.span.metrics.calls" for metric in mapping.store.metrics()))
        scopes = {
            scope.scope.name
            for request in mapping.store.messages("/v1/metrics")
            for of in request.resource_metrics
            for scope in of.scope_metrics
            for metric in scope.metrics
            if metric.name.startswith("gen_ai.")
        }
        assert scopes == {names.SCOPE}


@dataclass(frozen=True)
class Older:
    """A span of an older release, which none of today emits.

    Attributes:
        scope: the name of the instrumentation.
        name: the name of the span.
        sent: its attributes.
        renamed: its name behind the gateway.
        mapped: its attributes there.
    """

    scope: str
    name: str
    sent: Attributes
    renamed: str
    mapped: Attributes


OLDER = (
    Older(
        "opentelemetry.instrumentation.openai.v1",
        "openai.chat",
        {
            "llm.request.type": "chat",
            "gen_ai.system": "OpenAI",
            "gen_ai.request.model": "gpt-x",
            "gen_ai.usage.prompt_tokens": 7,
            "gen_ai.usage.completion_tokens": 3,
            "gen_ai.usage.cache_read_input_tokens": 2,
            "gen_ai.usage.cache_creation_input_tokens": 1,
            "llm.usage.reasoning_tokens": 1,
            "llm.usage.total_tokens": 10,
            "llm.is_streaming": True,
            "gen_ai.prompt.0.content": MARKER,
            "gen_ai.openai.api_base": "https://api.openai.com/v1/",
            "traceloop.workflow.name": "planning",
            "traceloop.association.properties.session_id": "s-1",
        },
        "chat gpt-x",
        {
            **OF_CHAT,
            "gen_ai.usage.input_tokens": 7,
            "gen_ai.usage.output_tokens": 3,
            "gen_ai.usage.cache_read.input_tokens": 2,
            "gen_ai.usage.cache_write.input_tokens": 1,
            "gen_ai.usage.reasoning.output_tokens": 1,
            "gen_ai.request.stream": True,
            "gen_ai.agent.name": "planning",
            "gen_ai.conversation.id": "s-1",
            "server.address": "api.openai.com",
            "server.port": 443,
        },
    ),
    Older(
        "traceloop.tracer",
        "search.tool",
        {"traceloop.span.kind": "tool", "traceloop.entity.name": "search", "traceloop.entity.input": MARKER},
        "execute_tool search",
        {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"},
    ),
    Older(
        "traceloop.tracer",
        "planner.agent",
        {"traceloop.span.kind": "agent", "traceloop.entity.name": "planner", "traceloop.entity.output": MARKER},
        "invoke_agent planner",
        {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "planner"},
    ),
    Older(
        "opentelemetry.instrumentation.openai.v1",
        "openai.embeddings",
        {"llm.request.type": "embedding", "gen_ai.system": "OpenAI", "gen_ai.request.model": "embed-x"},
        "embeddings embed-x",
        {
            "gen_ai.operation.name": "embeddings",
            "gen_ai.provider.name": "openai",
            "gen_ai.request.model": "embed-x",
        },
    ),
    Older(
        "pydantic-ai",
        "agent run",
        {"agent_name": "travel", "model_name": "gpt-x", "gen_ai.usage.input_tokens": 9, "final_result": MARKER},
        "invoke_agent travel",
        {**OF_RUN, "gen_ai.agent.name": "travel", "gen_ai.request.model": "gpt-x", "gen_ai.usage.input_tokens": 9},
    ),
    Older(
        "pydantic-ai",
        "running tool: search",
        {"gen_ai.tool.name": "search", "tool_arguments": MARKER, "tool_response": MARKER},
        "execute_tool search",
        {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"},
    ),
    Older(
        "openinference.instrumentation.openai_agents",
        "Triage",
        {"openinference.span.kind": "AGENT", "session.id": "s-1"},
        "invoke_agent Triage",
        {**OF_RUN, "gen_ai.agent.name": "Triage", "gen_ai.conversation.id": "s-1", **of_kind("AGENT")},
    ),
    Older(
        "openinference.instrumentation.openai_agents",
        "search",
        {"openinference.span.kind": "TOOL", "tool_call.id": "c-1", "input.value": MARKER, "output.value": MARKER},
        "execute_tool search",
        {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "search",
            "gen_ai.tool.call.id": "c-1",
            **of_kind("TOOL"),
        },
    ),
    Older(
        "openinference.instrumentation.litellm",
        "completion",
        {
            "openinference.span.kind": "LLM",
            "llm.model_name": "claude-x",
            "llm.provider": "anthropic",
            "llm.invocation_parameters": f"not JSON {MARKER}",
            "llm.token_count.prompt_details.cache_write": 4,
            "agent.name": "writer",
        },
        "chat claude-x",
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "anthropic",
            "gen_ai.request.model": "claude-x",
            "gen_ai.response.model": "claude-x",
            "gen_ai.usage.cache_write.input_tokens": 4,
            "gen_ai.agent.name": "writer",
            **of_kind("LLM"),
        },
    ),
)


@contextmanager
def tracer_provider(gateway: Gateway) -> Iterator[TracerProvider]:
    """Yield a provider of the service `older` that sends its spans to a gateway when the block ends."""
    provider = TracerProvider(resource=Resource({"service.name": "older"}), shutdown_on_exit=False)
    provider.add_span_processor(trace_pipeline(gateway.collector.address)[0])
    yield provider
    provider.shutdown()


@pytest.mark.slow
def test_names_of_older_releases_and_of_other_instrumentations_are_mapped(tmp_path: Path) -> None:
    with gateway(tmp_path) as mapping:
        with tracer_provider(mapping) as provider:
            for older in OLDER:
                provider.get_tracer(older.scope).start_span(older.name, attributes=dict(older.sent)).end()
            unexplained = provider.get_tracer("pydantic-ai").start_span(
                "agent run", attributes={"agent_name": "silent"}
            )
            unexplained.set_status(StatusCode.ERROR)
            unexplained.end()
        until(lambda: len(mapping.spans("older")) == len(OLDER) + 1)
        arrived = Counter(
            (span.name, str(sorted(attributes(span.attributes).items()))) for span in mapping.spans("older")
        )
        error = {**OF_RUN, "gen_ai.agent.name": "silent", "error.type": "_OTHER"}
        assert arrived == Counter(
            [(older.renamed, str(sorted(older.mapped.items()))) for older in OLDER]
            + [("invoke_agent silent", str(sorted(error.items())))]
        )
        log = (tmp_path / "gateway" / "log.txt").read_text()
        assert MARKER not in log
        assert [path for path, body in mapping.store.bodies() if holds_marker(body)] == []


@pytest.mark.slow
def test_arguments_and_results_pass_a_gateway_that_lists_them(tmp_path: Path) -> None:
    allowed = merged(FILES)["processors"]["redaction"]["allowed_keys"]
    listed = [*allowed, names.TOOL_CALL_ARGUMENTS, names.TOOL_CALL_RESULT]
    (tmp_path / "own.yaml").write_text(json.dumps({"processors": {"redaction": {"allowed_keys": listed}}}))
    with gateway(tmp_path, str(tmp_path / "own.yaml")) as mapping:
        with tracer_provider(mapping) as provider:
            for scope, sent in (
                ("openinference.x", {"openinference.span.kind": "TOOL", "input.value": "in", "output.value": "out"}),
                (
                    "opentelemetry.instrumentation.x",
                    {"traceloop.span.kind": "tool", "traceloop.entity.input": "in", "traceloop.entity.output": "out"},
                ),
                ("pydantic-ai", {"tool_arguments": "in", "tool_response": "out"}),
            ):
                provider.get_tracer(scope).start_span("tool", attributes=sent).end()
        until(lambda: len(mapping.spans("older")) == 3)
        for span in mapping.spans("older"):
            content = attributes(span.attributes)
            assert (content[names.TOOL_CALL_ARGUMENTS], content[names.TOOL_CALL_RESULT]) == ("in", "out")
