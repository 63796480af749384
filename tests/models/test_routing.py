"""A model that lets another model answer is one model call, of the model that answers, in all four modes."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.modes import ALL_MODES, run
from tests.sample_tools import add
from tests.waiting import patiently
from traced_tools import ChatClient, ToolCall, UserMessage
from traced_tools.models import AskModel, ChatModel, ChatRequest, ChatResponse, RoutingModel
from traced_tools.testing import ScriptedChatModel


class LastModel(RoutingModel):
    """Asks the last of its models."""

    async def route(self, ask: AskModel) -> ChatResponse:
        return await self.models[-1].route(ask)


class Wide(ScriptedChatModel):
    """A model with a context window, which may enforce schemas."""

    def __init__(self, window: int | None, enforces: bool = True) -> None:
        super().__init__([])
        self.context_window = window
        self._enforces = enforces

    def enforces_schema(self, schema: Any, *, with_tools: bool) -> bool:
        return self._enforces


def nested(turns: list[Any]) -> tuple[RoutingModel, ScriptedChatModel]:
    answering = ScriptedChatModel(turns, model="answering")
    unused = ScriptedChatModel([], model="unused")
    return LastModel([unused, LastModel([unused, answering])]), answering


@pytest.mark.parametrize("mode", ALL_MODES)
def test_the_model_that_answers_has_the_span_also_if_routes_are_nested(mode: str, telemetry: Telemetry) -> None:
    model, answering = nested([ToolCall("add", {"a": 1, "b": 2}), "three"])
    response = run(mode, ChatClient(model, tools=[add], telemetry=telemetry.options).prompt("1 + 2?"))
    assert (response.content, len(answering.requests)) == ("three", 2)
    assert [span.name for span in telemetry.named("chat")] == ["chat answering"] * 2
    assert response.run.totals.inference_calls == 2
    assert telemetry.one("invoke_agent").attributes["gen_ai.request.model"] == "unused"  # type: ignore[index]
    telemetry.check_each_ended_once()


def test_a_route_answers_without_a_client_as_well() -> None:
    model, answering = nested(["one two"] * 4)
    request = ChatRequest((UserMessage("?"),))

    async def on_asyncio() -> list[str]:
        chunks = [chunk.visible_text async for chunk in model.astream(request)]
        return [(await model.acall(request)).message.text, "".join(chunks)]

    assert model.call(request).message.text == "one two"
    assert [chunk.visible_text for chunk in model.stream(request) if chunk.visible_text] == ["one ", "two"]
    assert asyncio.run(patiently(on_asyncio())) == ["one two"] * 2
    assert answering.requests == [request] * 4


def test_a_stream_that_is_left_closes_the_stream_of_the_model() -> None:
    closed: list[str] = []

    class Closing(ScriptedChatModel):
        def stream(self, request: ChatRequest) -> Any:
            try:
                yield from super().stream(request)
            finally:
                closed.append("stream")

    stream: Any = LastModel([Closing(["one two three"])]).stream(ChatRequest((UserMessage("?"),)))
    assert next(stream).text == "one "
    stream.close()
    assert closed == ["stream"]


@pytest.mark.parametrize(("windows", "smallest"), [([None, None], None), ([None, 8], 8), ([9, 8], 8)], ids=repr)
def test_the_smallest_known_context_window_counts(windows: list[int | None], smallest: int | None) -> None:
    assert LastModel([Wide(window) for window in windows]).known_context_window() == smallest


@pytest.mark.parametrize("enforces", [[True, True], [True, False], [False, False]], ids=repr)
def test_a_schema_is_enforced_if_all_models_enforce_it(enforces: list[bool]) -> None:
    model = LastModel([Wide(None, each) for each in enforces])
    assert model.enforces_schema({"type": "object"}, with_tools=True) is all(enforces)


def test_a_deep_copy_of_a_route_is_the_route() -> None:
    model: ChatModel = nested([])[0]
    assert copy.deepcopy(model) is model


def test_the_repr_of_a_route_names_its_models() -> None:
    assert repr(LastModel([Wide(None), Wide(None)])) == "<LastModel of scripted, scripted>"


def test_only_chat_models_can_answer() -> None:
    with pytest.raises(TypeError, match=r"models\[1\] must be a ChatModel, not str"):
        LastModel([ScriptedChatModel([]), "gpt"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="models must have at least one"):
        LastModel([])
