"""The LogQL of the boards names what runs emit and the collector exports, and selects records of real runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider

from tests import yaml_files
from tests.dashboards.board_queries import BoardQuery, all_queries
from tests.dashboards.logql_reader import Selected, selections
from tests.judges.collector import CONFIGS
from tests.judges.programs import ROOT
from traced_tools import ChatClient, TelemetryOptions, ToolCall, Usage
from traced_tools.demo import Scenario
from traced_tools.demo.scenario.models import LARGE, ScenarioPrices
from traced_tools.observe import names
from traced_tools.otel.prometheus_names import label_name
from traced_tools.testing import ScriptedChatModel

QUERIES = [query for query in all_queries() if query.language == "logql"]
CONVERSATION = "trip-7"
OF_EACH_RECORD = {"service_name", "event_name", "trace_id"}
"""The labels that the collector and Loki give each record, whatever its event."""


@dataclass(frozen=True)
class Record:
    """A log record as Loki labels it.

    Attributes:
        labels: its labels, with the text of each value.
        numbers: the labels whose values are numbers.
        body: its body.
    """

    labels: Mapping[str, str]
    numbers: frozenset[str]
    body: str


def look_up(city: str) -> str:
    """Look up a city."""
    return city


def recorded() -> Iterator[Record]:
    """Yield the records of a round of the scenario, of a conversation of two runs, and of a run with content."""
    kept = InMemoryLogRecordExporter()
    provider = LoggerProvider(Resource.create({SERVICE_NAME: "travel"}), shutdown_on_exit=False)
    provider.add_log_record_processor(SimpleLogRecordProcessor(kept))
    tracing = TracerProvider(shutdown_on_exit=False)
    options = TelemetryOptions(tracing, logger_provider=provider, prices=ScenarioPrices())
    Scenario().run(telemetry=options, on_unexpected=print)  # on a busy machine, a run may end in another way
    with_content = replace(options, capture="EVENT_ONLY")
    for conversation, telemetry in ((CONVERSATION, options), (CONVERSATION, options), (None, with_content)):
        turns, usage = [ToolCall("look_up", {"city": "Oslo"}), "Fly."], Usage(input_tokens=300, output_tokens=20)
        model = ScriptedChatModel(turns, usage=usage, model=LARGE)
        client = ChatClient(model, tools=[look_up], name="travel_planner", telemetry=telemetry)
        client.prompt("How?", conversation_id=conversation).call()
    for each in kept.get_finished_logs():
        record = each.log_record
        attributes = {label_name(key): value for key, value in (record.attributes or {}).items()}
        labels = {key: value if isinstance(value, str) else json.dumps(value) for key, value in attributes.items()}
        numbers = (key for key, value in attributes.items() if isinstance(value, (int, float)))
        own = {"service_name": "travel", "event_name": record.event_name or "", "trace_id": f"{record.trace_id:032x}"}
        yield Record(labels | own, frozenset(numbers), str(record.body))


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return list(recorded())


def read(*queries: str) -> list[list[Selected]]:
    return selections(queries)


def of_boards(**values: str) -> Iterator[tuple[BoardQuery, Selected]]:
    """Yield what each query of a board selects."""
    for query, parts in zip(QUERIES, read(*(each.resolve(**values) for each in QUERIES)), strict=True):
        assert parts, f"{query} selects nothing"
        yield from ((query, part) for part in parts)


def exported_keys() -> set[str]:
    """Return the attribute keys that the gateway lets through."""
    processors: Any = yaml_files.load((CONFIGS / "gateway.yaml").read_text())["processors"]
    return {*processors["redaction"]["allowed_keys"]}


def stream_labels() -> set[str]:
    """Return the labels of the streams in the Loki of the compose stack."""
    limits: Any = yaml_files.load((ROOT / "deploy/compose/loki.yaml").read_text())["limits_config"]
    rules = limits["otlp_config"]["resource_attributes"]["attributes_config"]
    return {label_name(key) for rule in rules if rule["action"] == "index_label" for key in rule["attributes"]}


def misnamed(selected: Selected) -> list[str]:
    """Return what a selection names that no record has: a stream, an event, or a label of its events."""
    exported = {label_name(key) for key in exported_keys()}
    events = selected.events()
    types = [event for event in names.EVENTS.values() if event.name in events]
    content = {label_name(key) for event in names.EVENTS.values() for key in event.content}
    wrong = [f"no event is called {name}" for name in events - names.EVENTS.keys()]
    wrong += [f"no stream has {label}" for each in selected.stream for label in {*each.labels} - stream_labels()]
    for label in selected.labels - OF_EACH_RECORD:
        if label not in exported | content:
            wrong.append(f"the collector exports no {label}")
        wrong += [
            f"{event.name} has no {label}"
            for event in types
            if label not in map(label_name, (*event.attributes, *event.content))
        ]
    return wrong


def test_the_boards_name_streams_events_and_labels_that_exist() -> None:
    wrong = {f"{query}: {finding}" for query, selected in of_boards() for finding in misnamed(selected)}
    assert wrong == set()


STOPS = '{service_name=~".+"} | event_name="traced_tools.loop.stop"'


@pytest.mark.parametrize(
    ("query", "finding"),
    [
        ('{job=~".+"}', "no stream has job"),
        (STOPS.replace("loop", "lopp"), "no event is called traced_tools.lopp.stop"),
        (f'{STOPS} | traced_tools_tool_decision="denied"', "traced_tools.loop.stop has no traced_tools_tool_decision"),
        (f'{STOPS} | traced_tools_loop_stopreason=""', "the collector exports no traced_tools_loop_stopreason"),
        (f"sum(sum_over_time({STOPS} | unwrap gen_ai_cost [1h]))", "the collector exports no gen_ai_cost"),
        (f"sum by (agent) (count_over_time({STOPS} [1h]))", "the collector exports no agent"),
        (f"quantile_over_time(0.5, {STOPS} | unwrap traced_tools_loop_cost [1h]) by (agent)", "exports no agent"),
    ],
)
def test_a_name_that_does_not_exist_is_found(query: str, finding: str) -> None:
    ((selected,),) = read(query)
    assert finding in "; ".join(misnamed(selected))


def test_every_query_of_a_board_selects_records_of_real_runs(records: list[Record]) -> None:
    stops = [each.labels for each in records if each.labels["event_name"] == names.LOOP_STOP_EVENT.name]
    run = next(labels for labels in stops if label_name(names.CONVERSATION_ID) in labels)
    values = {"conversation": CONVERSATION, "run": run[label_name(names.RUN_ID)]}
    selecting = {str(query) for query in QUERIES if "or vector(0)" in query.text}  # they count what never happens here
    for query, selected in of_boards(**values):
        found = [record for record in records if selected.selects(record.labels)]
        selecting |= {str(query)} if found else set()
        for label in selected.unwrapped:
            assert {label in each.numbers for each in found if label in each.labels} == {True}, f"{query}: {label}"
        for path in selected.extracted:
            assert any(_value(each.body, path) for each in found), f"{query}: no body has {path}"
    assert {str(query) for query in QUERIES} - selecting == set()


def _value(body: str, path: str) -> Any:
    value = json.loads(body)
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def test_the_records_of_a_conversation_are_found(records: list[Record]) -> None:
    ((selected,),) = read(f'{{service_name=~".+"}} | gen_ai_conversation_id="{CONVERSATION}"')
    found = Counter(each.labels["event_name"] for each in records if selected.selects(each.labels))
    of_a_run = (names.TOOL_INTENT_EVENT, names.TOOL_DECISION_EVENT, names.TOOL_OUTCOME_EVENT, names.LOOP_STOP_EVENT)
    assert found == {event.name: 2 for event in of_a_run}


LABELS = {"service_name": "travel", "tool": "pay", "by": "ann", "rounds": "5"}


@pytest.mark.parametrize(
    ("filters", "selects"),
    [
        ('| tool="pay"', True),
        ('| tool=~"p"', False),
        ('| tool!~"allowed|approved"', True),
        ('| missing=""', True),
        ('| missing!=""', False),
        ("| missing >= 1", False),
        ("| rounds >= 5 | rounds < 6", True),
        ('| (tool="pay" and by="") or (by="ann" and tool!="")', True),
        ('| tool="pay" and by="" or tool="buy"', False),
        ("| tool=~`pa.` | json digest=`arguments.digest`", True),
    ],
)
def test_filters_select_records_as_loki_does(filters: str, selects: bool) -> None:
    ((selected,),) = read(f'{{service_name=~".+", service_name="travel"}} {filters}')
    assert selected.selects(LABELS) is selects
