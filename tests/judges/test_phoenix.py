"""A real Phoenix is sent real runs: it sees agents, models and tools, who called whom, what it cost, and no content."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.judges.agent import USAGE
from tests.judges.phoenix import Phoenix, phoenix_running
from tests.judges.programs import agent
from tests.markers import MARKER
from traced_tools.observe import names
from traced_tools.observe.settings import EARLIER, GENAI_CONVENTIONS

pytestmark = pytest.mark.slow  # Phoenix takes ten seconds to start

TRACES_ALONE = {"OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
"""Phoenix takes nothing else."""

KINDS = {
    names.INVOKE_AGENT: "AGENT",
    names.CHAT: "LLM",
    names.EXECUTE_TOOL: "TOOL",
    names.EMBEDDINGS: "EMBEDDING",
}
"""What Phoenix makes of the operations of the GenAI conventions."""

TOKENS = "{ projects { edges { node { tokenCountTotal spans(first: 1000) { edges { node { spanId %s } } } } } } }"
CUMULATED = "cumulativeTokenCountPrompt cumulativeTokenCountCompletion"


@dataclass(frozen=True)
class Stored:
    """What was sent, and what Phoenix has of it.

    Attributes:
        sent: the spans as the SDK saw them end.
        spans: the spans as Phoenix returns them, by their ids.
    """

    phoenix: Phoenix
    sent: list[dict[str, Any]]
    spans: dict[str, Mapping[str, Any]]

    def of(self, operation: str) -> list[tuple[dict[str, Any], Mapping[str, Any]]]:
        """Return each span of an operation, as it was sent and as it is stored."""
        wanted = [span for span in self.sent if span["attributes"].get(names.OPERATION_NAME) == operation]
        return [(span, self.spans[span["span_id"]]) for span in wanted]


@pytest.fixture(scope="module")
def phoenix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Phoenix]:
    """One Phoenix for all tests."""
    with phoenix_running(tmp_path_factory.mktemp("phoenix")) as phoenix:
        yield phoenix


@pytest.fixture(scope="module")
def stored(phoenix: Phoenix) -> Stored:
    """The runs of all agents, in all modes, without content."""
    return stored_of(phoenix)


def stored_of(phoenix: Phoenix, *arguments: str, **variables: str) -> Stored:
    """Have all agents run and Phoenix store what they send."""
    with agent("--otlp", phoenix.address, *arguments, **TRACES_ALONE, **variables) as ran:
        sent = ran.spans
    return Stored(phoenix, sent, phoenix.spans({span["span_id"] for span in sent}))


def test_agents_models_and_tools_are_seen_as_such(stored: Stored) -> None:
    for operation, kind in KINDS.items():
        assert {span["span_kind"] for _, span in stored.of(operation)} == {kind}, operation


def test_a_refused_tool_is_seen_as_a_tool_and_our_own_spans_as_nothing_special(stored: Stored) -> None:
    others = [span for span in stored.sent if names.OPERATION_NAME not in span["attributes"]]
    kinds = {(span["name"].split()[0], stored.spans[span["span_id"]]["span_kind"]) for span in others}
    refused = {each for each in kinds if each[0] == "refuse_tool"}
    assert refused == {("refuse_tool", "TOOL")}
    assert {kind for _, kind in kinds - refused} == {"UNKNOWN"}


def test_each_span_has_its_parent_its_trace_and_its_status(stored: Stored) -> None:
    for span in stored.sent:
        found = stored.spans[span["span_id"]]
        assert found["name"] == span["name"]
        assert found["parent_id"] == span["parent_id"]
        assert found["context"]["trace_id"] == span["trace_id"]
        assert found["status_code"] == span["status"]


def test_what_failed_shows_the_type_of_its_error_and_no_text(stored: Stored) -> None:
    failed = [span for span in stored.spans.values() if span["status_code"] == "ERROR"]
    types = Counter((span["span_kind"], span["attributes"][names.ERROR_TYPE]) for span in failed)
    limited = "traced_tools.errors.RateLimited"
    assert {("TOOL", "OSError"), ("LLM", limited), ("AGENT", limited), ("EMBEDDING", limited)} <= types.keys()
    for span in stored.spans.values():
        assert span["status_message"] == span["attributes"].get(names.ERROR_TYPE, "")
        assert not span["events"]


def test_models_and_tools_have_their_names(stored: Stored) -> None:
    models = {span["attributes"]["llm.model_name"] for _, span in stored.of(names.CHAT)}
    tools = {span["attributes"]["tool.name"] for _, span in stored.of(names.EXECUTE_TOOL)}
    assert models == {"scripted-1", "gpt-x"}
    assert tools == {"weather", "flights"}
    assert {span["attributes"]["tool.id"] for _, span in stored.of(names.EXECUTE_TOOL)} >= {"call_1_1", "call_1_2"}


def test_each_answer_has_its_tokens(stored: Stored) -> None:
    for sent, span in stored.of(names.CHAT):
        counts = [span["attributes"].get(f"llm.token_count.{kind}") for kind in ("prompt", "completion")]
        answered = sent["status"] != "ERROR"
        assert counts == ([USAGE.input_tokens, USAGE.output_tokens] if answered else [None, None])


def test_the_tokens_of_a_run_are_counted_once(stored: Stored) -> None:
    (project,) = stored.phoenix.ask(TOKENS % CUMULATED)["projects"]["edges"]
    counted = {each["node"]["spanId"]: each["node"] for each in project["node"]["spans"]["edges"]}
    for sent, _ in stored.of(names.INVOKE_AGENT):
        found = counted[sent["span_id"]]
        reported = (sent["attributes"].get(each, 0) for each in (names.USAGE_INPUT_TOKENS, names.USAGE_OUTPUT_TOKENS))
        assert tuple(found[each] for each in CUMULATED.split()) == tuple(reported)


def test_nothing_that_was_said_is_stored(stored: Stored) -> None:
    assert "scripted-1" in json.dumps(stored.spans)
    assert MARKER not in json.dumps(stored.spans)


@pytest.fixture(scope="module")
def captured(phoenix: Phoenix) -> Stored:
    """The same runs, with content and the kinds of OpenInference, and in the shapes of v1.41.0."""
    shapes = {GENAI_CONVENTIONS: EARLIER}
    return stored_of(phoenix, "--capture", "SPAN_AND_EVENT", TRACED_TOOLS_OPENINFERENCE="true", **shapes)


def test_every_span_has_a_kind_where_the_kinds_of_openinference_are_asked_for(captured: Stored) -> None:
    assert {span["span_kind"] for span in captured.spans.values()} == {"AGENT", "CHAIN", "LLM", "TOOL", "EMBEDDING"}


def test_what_was_said_is_there_when_it_is_captured(captured: Stored) -> None:
    last = {span["attributes"][names.AGENT_NAME]: found["attributes"] for span, found in captured.of(names.CHAT)}
    for agent_name, final in (("pair", MARKER), ("failing", MARKER), ("remote", f"{MARKER} is here")):
        said = last[agent_name]
        assert [said[f"llm.input_messages.{index}.message.role"] for index in range(2)] == ["system", "user"]
        assert said["llm.input_messages.0.message.content"] == MARKER
        assert said["llm.input_messages.1.message.content"] == f"{MARKER} go"
        assert said["llm.output_messages.0.message.role"] == "assistant"
        assert said["llm.output_messages.0.message.content"] == final


def test_of_an_answer_in_the_shape_of_v0_1_0_phoenix_keeps_the_attribute(phoenix: Phoenix) -> None:
    """Phoenix requires a finish reason, as v1.41.0 does, to show an answer as a message."""
    stored = stored_of(phoenix, "--capture", "SPAN_ONLY")
    for sent, found in stored.of(names.CHAT):
        said = found["attributes"]
        assert said["llm.input_messages.0.message.content"] == MARKER
        if names.OUTPUT_MESSAGES in sent["attributes"]:
            assert "llm.output_messages.0.message.role" not in said
            assert said[names.OUTPUT_MESSAGES] == sent["attributes"][names.OUTPUT_MESSAGES]


def test_calls_are_shown_in_the_conversation_when_they_are_captured(captured: Stored) -> None:
    (said, *_) = (
        found["attributes"]
        for span, found in captured.of(names.CHAT)
        if span["attributes"][names.AGENT_NAME] == "pair" and span["attributes"][names.ITERATION_INDEX] == 2
    )
    for index, city in enumerate((MARKER, "Oslo")):
        call = f"llm.input_messages.2.message.tool_calls.{index}.tool_call"
        assert said[f"{call}.function.name"] == "weather"
        assert json.loads(said[f"{call}.function.arguments"]) == {"city": city}


def test_arguments_and_results_of_tools_are_there_when_they_are_captured(captured: Stored) -> None:
    pair = [
        found["attributes"]
        for _, found in captured.of(names.EXECUTE_TOOL)
        if found["attributes"]["tool.name"] == "weather"
    ]
    seen = {(each["tool.parameters.city"], json.loads(each["output.value"])) for each in pair}
    assert seen == {(city, f"{MARKER} sunny in {city}") for city in (MARKER, "Oslo")}


def test_the_tools_a_model_may_call_are_there_when_they_are_captured(captured: Stored) -> None:
    for _, span in captured.of(names.CHAT):
        schemas = [json.loads(text) for key, text in span["attributes"].items() if key.startswith("llm.tools.")]
        assert {schema["function"]["name"] for schema in schemas} == {"weather", "flights", "pay"}
