"""A real Loki answers LogQL about the events of real runs with the counts of what the SDK has ended."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from statistics import median
from typing import Any

import pytest
from opentelemetry.sdk._logs import LoggerProvider, ReadableLogRecord
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider

from tests.dashboards.board_queries import BoardQuery, all_queries
from tests.judges.loki import EVENT_NAME, Loki, running_loki
from tests.sweeps import check_each
from traced_tools import ChatClient, TelemetryOptions, ToolCall, Usage
from traced_tools.observe import names
from traced_tools.observe.names.registry_types import EventType
from traced_tools.otel.prometheus_names import label_name
from traced_tools.testing import Scenario, ScriptedChatModel
from traced_tools.testing.scenario.models import LARGE, ScenarioPrices

pytestmark = pytest.mark.slow

CONVERSATION = "trip-7"
OF_SERVICE = '{service_name="travel"}'
Values = tuple[Any, ...]


@dataclass(frozen=True)
class Event:
    """An event as the SDK has ended it."""

    name: str
    attributes: Mapping[str, Any]
    trace_id: str

    def get(self, *attributes: str) -> Values:
        """Return the values of attributes; None for one that the event does not have."""
        return tuple(self.attributes.get(each) for each in attributes)

    def scalars(self) -> list[str]:
        """Return the attributes whose values are neither lists nor objects."""
        return [key for key, value in self.attributes.items() if isinstance(value, (str, int, float))]


@dataclass(frozen=True)
class Judged:
    """Loki, and the events that it was sent."""

    loki: Loki
    events: list[Event]

    def of(self, event: EventType, *attributes: str) -> list[Event]:
        """Return the events of a type that have these attributes."""
        return [each for each in self.events if each.name == event.name and {*attributes} <= each.attributes.keys()]

    def check(self, query: str, expected: Mapping[Values, float], *by: str) -> None:
        """Assert the value of each series of a metric query, by the values of attributes."""
        found = {tuple(series.get(label_name(each)) for each in by): value for series, value in self.loki.values(query)}
        assert expected
        assert found == pytest.approx(dict(expected))

    def check_count(self, events: list[Event], query: str, *by: str) -> None:
        """Assert how many records a log query finds, by the values of attributes."""
        counted = f"sum by ({', '.join(map(label_name, by))}) (count_over_time({query} [1h]))"
        self.check(counted, Counter(event.get(*by) for event in events), *by)


def of_type(event: EventType, *conditions: str) -> str:
    """Return a log query for the events of a type."""
    return " | ".join((OF_SERVICE, f'{EVENT_NAME}="{event.name}"', *conditions))


def look_up(city: str) -> str:
    """Look up a city."""
    return city


def played() -> list[ReadableLogRecord]:
    """Return the log records of a round of the scenario, of a conversation of two runs, and of a run with content."""
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
    return list(kept.get_finished_logs())


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judged]:
    with running_loki(tmp_path_factory.mktemp("loki")) as loki:
        records = played()
        loki.send(records)
        ended = [record.log_record for record in records]
        yield Judged(
            loki,
            [Event(each.event_name or "", dict(each.attributes or {}), f"{each.trace_id or 0:032x}") for each in ended],
        )


def test_loki_has_each_event_once_with_its_attributes(judged: Judged) -> None:
    def as_stored(value: Any) -> str:
        return format(Decimal(str(value)), "f") if isinstance(value, float) else str(value)  # without an exponent

    ended = Counter(
        (event.name, *sorted((label_name(key), as_stored(event.attributes[key])) for key in event.scalars()))
        for event in judged.events
    )
    labels = {label_name(key) for event in judged.events for key in event.scalars()}
    found = Counter(
        (record[EVENT_NAME], *sorted((key, text) for key, text in record.items() if key in labels))
        for record in judged.loki.records(OF_SERVICE)
    )
    assert found == ended


def test_loki_makes_an_attribute_of_each_argument_and_a_text_of_messages(judged: Judged) -> None:
    intent, details = names.TOOL_INTENT_EVENT, names.INFERENCE_DETAILS_EVENT
    (record,) = judged.loki.records(of_type(intent, 'gen_ai_tool_call_arguments_city="Oslo"'))
    assert label_name(names.TOOL_CALL_ARGUMENTS) not in record
    first, second = judged.loki.records(of_type(details, f'{label_name(names.INPUT_MESSAGES)}=~".+How.+"'))
    assert first[label_name(names.INPUT_MESSAGES)].startswith('[{"parts":[')
    assert second[label_name(names.OUTPUT_MESSAGES)].startswith('[{"finish_reason":')


def test_only_the_service_and_its_instance_are_stream_labels(judged: Judged) -> None:
    (stream,) = judged.loki.ask("series", **{"match[]": OF_SERVICE})
    assert stream.keys() == {"service_name", "service_instance_id"}


def test_decisions_are_counted_by_tool(judged: Judged) -> None:
    event = names.TOOL_DECISION_EVENT
    judged.check_count(judged.of(event), of_type(event), names.TOOL_NAME, names.TOOL_DECISION)


def test_denied_calls_are_counted_by_advisor_and_reason(judged: Judged) -> None:
    event = names.TOOL_DECISION_EVENT
    denied = judged.of(event, names.REASON_CODE)
    query = of_type(event, f'{label_name(names.REASON_CODE)}!=""')
    judged.check_count(denied, query, names.ADVISOR_NAME, names.REASON_CODE)
    assert {"over_budget", "personal_data", "too_late"} < {event.attributes[names.REASON_CODE] for event in denied}


def test_a_person_who_approves_or_denies_is_found(judged: Judged) -> None:
    event = names.TOOL_DECISION_EVENT
    query = of_type(event, f'{label_name(names.APPROVAL_BY)}!=""')
    judged.check_count(judged.of(event, names.APPROVAL_BY), query, names.APPROVAL_BY, names.TOOL_DECISION)


def test_runs_are_counted_by_stop_reason(judged: Judged) -> None:
    event = names.LOOP_STOP_EVENT
    judged.check_count(judged.of(event), of_type(event), names.LOOP_STOP_REASON)


def test_audit_events_are_counted_by_type(judged: Judged) -> None:
    types = [event for event in names.EVENTS.values() if event.name.startswith("traced_tools.audit.")]
    ended = Counter({(event.name,): len(judged.of(event)) for event in types if judged.of(event)})
    query = f'sum by ({EVENT_NAME}) (count_over_time({OF_SERVICE} | {EVENT_NAME}=~"traced_tools.audit.+" [1h]))'
    judged.check(query, ended, EVENT_NAME)
    assert (names.AUDIT_GAP_EVENT.name,) in ended


@pytest.mark.parametrize("attribute", [names.USAGE_INPUT_TOKENS, names.LOOP_COST])
def test_tokens_and_costs_are_added_up_by_agent(judged: Judged, attribute: str) -> None:
    event, sums = names.LOOP_STOP_EVENT, defaultdict[Values, float](float)
    for stop in judged.of(event, attribute):
        sums[stop.get(names.AGENT_NAME)] += stop.attributes[attribute]
    query = of_type(event, f"unwrap {label_name(attribute)}")
    judged.check(f"sum by (gen_ai_agent_name) (sum_over_time({query} [1h]))", sums, names.AGENT_NAME)


def test_the_quantiles_of_the_sizes_of_results_are_exact(judged: Judged) -> None:
    event, sizes = names.TOOL_OUTCOME_EVENT, defaultdict[Values, list[float]](list)
    for outcome in judged.of(event, names.TOOL_RESULT_SIZE):
        sizes[outcome.get(names.TOOL_NAME)].append(outcome.attributes[names.TOOL_RESULT_SIZE])
    medians = {tool: median(each) for tool, each in sizes.items()}
    query = of_type(event, f"unwrap {label_name(names.TOOL_RESULT_SIZE)}")
    judged.check(f"quantile_over_time(0.5, {query} [1h]) by (gen_ai_tool_name)", medians, names.TOOL_NAME)


def test_the_records_of_a_conversation_are_found(judged: Judged) -> None:
    found = judged.loki.records(f'{OF_SERVICE} | gen_ai_conversation_id="{CONVERSATION}"')
    of_a_run = (names.TOOL_INTENT_EVENT, names.TOOL_DECISION_EVENT, names.TOOL_OUTCOME_EVENT, names.LOOP_STOP_EVENT)
    assert Counter(record[EVENT_NAME] for record in found) == {event.name: 2 for event in of_a_run}


def test_the_records_of_each_trace_are_found(judged: Judged) -> None:
    traces = Counter(event.trace_id for event in judged.events).most_common(5)
    for trace_id, count in traces:
        found = judged.loki.records(f'{OF_SERVICE} | trace_id="{trace_id}"')
        assert len(found) == count > 1


def test_every_query_of_a_board_has_data(judged: Judged) -> None:
    run_id = judged.of(names.LOOP_STOP_EVENT, names.CONVERSATION_ID)[0].attributes[names.RUN_ID]

    def check(query: BoardQuery) -> None:
        text = query.resolve(conversation=CONVERSATION, run=run_id)
        assert judged.loki.finds(text, is_instant=query.is_instant), text

    check_each({str(query): query for query in all_queries() if query.language == "logql"}, check)


def test_a_query_with_a_misspelt_attribute_has_no_data(judged: Judged) -> None:
    good = of_type(names.LOOP_STOP_EVENT, 'traced_tools_loop_stop_reason="answered"')
    for query, counts in ((good, True), (good.replace("stop_reason", "stopreason"), False)):
        assert judged.loki.finds(query) is counts
        assert judged.loki.finds(f"sum(count_over_time({query} [1h]))", is_instant=True) is counts
