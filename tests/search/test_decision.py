"""A model decides which tools fit, in all four modes, alone and in a run."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.markers import MARKER, everything
from tests.modes import ALL_MODES, MODES, run
from tests.search.deciding import DecidingModel, answering, asked
from traced_tools import Advisor, ChatClient, ModelError, SystemMessage, Usage
from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.models import ChatModel, ChatRequest, ChatResponse, FallbackModel
from traced_tools.search import DecisionToolIndex, HybridToolIndex, KeywordToolIndex, RegexToolIndex, ToolMatch
from traced_tools.testing import ScriptedChatModel

TOOLS = [
    ToolDefinition(name="weather_now", description="Return the weather of a city now."),
    ToolDefinition(name="weather_history", description="Return the weather of past years."),
    ToolDefinition(name="book_flight", description="Book a flight to a city."),
]
QUERY = "weather in the city"


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def index(model: ChatModel, **settings: Any) -> DecisionToolIndex:
    made = DecisionToolIndex(model, RegexToolIndex(), **settings)
    made.add(TOOLS)
    return made


def candidates() -> list[ToolMatch]:
    without = RegexToolIndex()
    without.add(TOOLS)
    return without.search(QUERY)


class Searching(Advisor):
    """Searches before the model answers."""

    name, order = "searching", 100

    def __init__(self, index: DecisionToolIndex | HybridToolIndex) -> None:
        self._index = index
        self.found: list[ToolMatch] = []

    async def advise(self, request: Any, call_next: Any) -> Any:
        self.found = await self._index.search_in_run(request.run, QUERY, 5)
        return await call_next(request)


def searched(mode: str, index: Any, telemetry: Telemetry | None = None) -> tuple[list[ToolMatch], Any]:
    advisor = Searching(index)
    model = ScriptedChatModel(["Done."], usage=Usage(input_tokens=1, output_tokens=1))
    options = (telemetry or Telemetry()).options
    response = run(mode, ChatClient(model, advisors=[advisor], telemetry=options).prompt("Go."))
    return advisor.found, response


def test_the_probability_is_the_score_and_unlikely_tools_are_left_out(mode: str) -> None:
    model = ScriptedChatModel([answering((1, 0.7), (2, 0.4), (3, 0.95))])
    order = [each.name for each in candidates()]
    found, _ = searched(mode, index(model))
    assert found == [ToolMatch(order[2], 0.95), ToolMatch(order[0], 0.7)]


def test_the_calls_are_observed_and_count_towards_the_run(mode: str) -> None:
    telemetry = Telemetry()
    found, response = searched(mode, index(DecidingModel(), batch_size=2), telemetry)
    assert len(found) == 3
    assert [span.name for span in telemetry.spans].count("chat decider") == 2
    assert response.usage == Usage(input_tokens=201, output_tokens=21)


def test_a_hybrid_index_searches_a_decision_index_in_the_run(mode: str) -> None:
    telemetry = Telemetry()
    hybrid = HybridToolIndex([KeywordToolIndex(), index(DecidingModel())])
    hybrid.add(TOOLS)
    found, response = searched(mode, hybrid, telemetry)
    assert {each.name for each in found} == {each.name for each in TOOLS}
    assert "chat decider" in [span.name for span in telemetry.spans]
    assert response.usage == Usage(input_tokens=101, output_tokens=11)


def fails(_: ChatRequest) -> ChatResponse:
    raise ModelError(f"the provider is down {MARKER}", provider="test")


FAILURES: dict[str, Any] = {
    "a model error": fails,
    "another error": ValueError(MARKER),
    "no JSON": "No idea.",
    "nothing": "",
    "a wrong probability": '{"tools": [{"number": 1, "probability": 7}]}',
    "no list": '{"tools": 1}',
}


@pytest.mark.parametrize("turn", FAILURES.values(), ids=FAILURES)
def test_the_candidates_are_the_result_if_the_model_fails(mode: str, turn: Any, caplog: Any) -> None:
    found, response = searched(mode, index(ScriptedChatModel([turn])))
    assert (found, response.content) == (candidates(), "Done.")
    (record,) = [each for each in caplog.records if "decision" in each.name]
    assert "<DecisionToolIndex of 3 tools with scripted>: the model failed with " in record.getMessage()
    assert MARKER not in caplog.text
    assert "weather" not in caplog.text


class Slow(ChatModel):
    """Answers when the test lets it."""

    model, provider = "slow", "test"

    def __init__(self) -> None:
        self.released = threading.Event()
        self.calls = 0

    def call(self, request: ChatRequest) -> ChatResponse:
        self.calls += 1
        self.released.wait(30)
        return answering((1, 1.0))


@pytest.mark.parametrize("mode", ALL_MODES)
def test_the_candidates_are_the_result_if_the_model_takes_too_long(mode: str) -> None:
    model = Slow()
    try:
        found, _ = searched(mode, index(model, timeout=0.05, batch_size=1))
        assert found == candidates()
    finally:
        model.released.set()
    assert model.calls == 1


def test_a_search_outside_of_a_run_asks_the_model_by_its_route() -> None:
    model = FallbackModel([ScriptedChatModel([fails]), ScriptedChatModel([answering((1, 0.9))])])
    assert index(model).search(QUERY) == [ToolMatch(candidates()[0].name, 0.9)]
    assert index(ScriptedChatModel(["?"])).search(QUERY, 2) == candidates()[:2]
    assert index(DecidingModel(), timeout=None).search("flight") == [ToolMatch("book_flight", 0.9)]


def test_numbers_that_the_model_invents_are_ignored_and_of_repeated_ones_the_most_likely_counts() -> None:
    model = ScriptedChatModel([answering((0, 1.0), (-1, 1.0), (4, 1.0), (1, 0.5), (1, 0.8), (1, 0.6))])
    assert index(model).search(QUERY) == [ToolMatch(candidates()[0].name, 0.8)]


def test_the_model_is_not_asked_if_there_are_no_candidates() -> None:
    model = DecidingModel()
    assert index(model).search("nonsense") == []
    assert model.requests == []


def test_what_the_model_is_sent_is_bounded() -> None:
    model = DecidingModel()
    made = DecisionToolIndex(model, RegexToolIndex(), max_candidates=10, batch_size=4)
    long = "x" * 10_000
    made.add(ToolDefinition(name=f"weather_{number}_{long}", description="weather " * 1_000) for number in range(50))
    made.search(f"weather {'x' * 100_000}", 30)
    assert [len(asked(request)) - 1 for request in model.requests] == [4, 4, 2]
    assert max(len(request.messages[1].text) for request in model.requests) < 6_500  # type: ignore[union-attr]


def instructions(model: DecidingModel) -> str:
    message = model.requests[0].messages[0]
    assert isinstance(message, SystemMessage)
    return message.text


def test_a_model_that_enforces_schemas_gets_one_instead_of_instructions() -> None:
    class Enforcing(DecidingModel):
        def enforces_schema(self, schema: Any, *, with_tools: bool) -> bool:
            return True

    enforcing, plain = Enforcing(), DecidingModel()
    for model in (enforcing, plain):
        index(model).search(QUERY)
    assert enforcing.requests[0].options.output_schema is not None
    assert "JSON Schema" not in instructions(enforcing)
    assert plain.requests[0].options.output_schema is None
    assert "JSON Schema" in instructions(plain)


def test_a_query_is_in_telemetry_only_if_contents_are_captured() -> None:
    telemetry = Telemetry()
    searched("call", index(DecidingModel()), telemetry)
    texts = [*(span.to_json() for span in telemetry.spans), everything(telemetry.metrics)]
    assert not [text for text in texts if QUERY in text]


WRONG: tuple[tuple[dict[str, Any], type[Exception], str], ...] = (
    ({"max_candidates": 0}, ValueError, "max_candidates"),
    ({"batch_size": "2"}, TypeError, "batch_size"),
    ({"min_score": 1.5}, ValueError, "min_score"),
    ({"min_score": "high"}, TypeError, "min_score"),
    ({"timeout": 0}, ValueError, "timeout"),
    ({"options": {}}, TypeError, "options"),
)


@pytest.mark.parametrize(("settings", "kind", "match"), WRONG)
def test_wrong_settings_are_refused(settings: dict[str, Any], kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match):
        index(DecidingModel(), **settings)


def test_it_needs_a_model_and_an_index() -> None:
    with pytest.raises(TypeError, match="model must be a ChatModel, not int"):
        DecisionToolIndex(7, RegexToolIndex())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="candidates must be a ToolIndex, not list"):
        DecisionToolIndex(DecidingModel(), [])  # type: ignore[arg-type]
