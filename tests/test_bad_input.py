"""Invalid arguments are refused where they are passed, with the name of the argument and the accepted values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.modes import run
from traced_tools import (
    AssistantMessage,
    ChatClient,
    ChatOptions,
    ImagePart,
    LoopLimits,
    SystemMessage,
    TextPart,
    ToolCall,
    UserMessage,
)
from traced_tools.loop import ToolCallingAdvisor
from traced_tools.models import ChatModel, ChatResponse, OpenAIChatModel
from traced_tools.tools import FunctionToolCallback, ToolCallingManager

URL = "http://127.0.0.1:1"


class Odd(ChatModel):
    """Streams text in place of chunks."""

    model, provider = "odd", "odd"

    def call(self, request: Any) -> ChatResponse:
        """Answer."""
        return ChatResponse(AssistantMessage("fine"))

    def stream(self, request: Any) -> Iterator[Any]:
        """Give what is no chunk."""
        yield "text"

    async def astream(self, request: Any) -> Any:
        """Give what is no chunk."""
        yield "text"


def by_hand() -> object:
    response = ChatResponse(AssistantMessage(tool_calls=[ToolCall("add")]))
    wrong: Any = 3
    return ToolCallingManager().execute_tool_calls([UserMessage("x")], response, tools=[], tool_errors=wrong)


@pytest.mark.parametrize(
    ("attempt", "says"),
    [
        (lambda: LoopLimits(max_iterations=0.5), "max_iterations must be an int or None"),
        (lambda: LoopLimits(max_tool_calls=True), "max_tool_calls must be a number or None"),
        (lambda: LoopLimits(max_tokens=0), "max_tokens must be above 0"),
        (lambda: OpenAIChatModel("m", base_url=URL, retries=True), "retries must be an int"),
        (lambda: OpenAIChatModel("m", base_url=URL, retries=-1), "retries must be at least 0"),
        (lambda: OpenAIChatModel("m", base_url=URL, provider=3), "provider must be a str"),
        (lambda: OpenAIChatModel("m", base_url=URL, stream_usage="no"), "stream_usage must be True or False"),
        (lambda: ToolCallingAdvisor(order=True), "order must be an int"),
        (lambda: ToolCallingAdvisor(keep_history="no"), "keep_history must be True or False"),
        (lambda: ChatClient(Odd(), name=" "), "name must not be blank"),
        (lambda: ChatClient(Odd()).prompt("x", tool=[]), "prompt() got an unexpected keyword argument 'tool'"),
        (lambda: ChatClient(Odd()).resume("x", system=""), "ChatClient.resume() got an unexpected keyword argument"),
        (lambda: ChatClient(Odd()).prompt("x", limits=3), "limits must be a LoopLimits or None"),
        (lambda: FunctionToolCallback(by_hand, metadata=3), "metadata must be a ToolMetadata"),
        (lambda: UserMessage([3]), "parts.0\n  Input should be a TextPart or an ImagePart"),
        (lambda: AssistantMessage([3]), "a TextPart, a ReasoningPart, a ToolCall, an ImagePart or a ProviderPart"),
        (lambda: ChatOptions(temperature="warm"), "temperature\n  Input should be a valid number"),
        (by_hand, "tool_errors must be a ToolErrors"),
    ],
)
def test_a_wrong_argument_is_named_with_what_is_accepted(attempt: Callable[[], object], says: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        attempt()
    assert says in str(caught.value)


CLIENT = ChatClient(Odd())
BLANK = "must not be blank"


@pytest.mark.parametrize(
    ("attempt", "says"),
    [
        (lambda: CLIENT.prompt(""), f"user {BLANK}: it needs a text or an image"),
        (lambda: CLIENT.prompt(" \n\t"), f"user {BLANK}"),
        (lambda: CLIENT.prompt([]), f"user {BLANK}"),
        (lambda: CLIENT.prompt([TextPart(""), TextPart(" ")]), f"user {BLANK}"),
        (lambda: CLIENT.prompt(UserMessage("")), f"user {BLANK}"),
        (lambda: CLIENT.prompt("x", system=""), f"system {BLANK}: it needs a text; omit it for no instructions"),
        (lambda: CLIENT.prompt("x", system="  "), f"system {BLANK}"),
        (lambda: CLIENT.prompt("x", messages=[UserMessage("x"), UserMessage()]), f"messages[1] {BLANK}"),
        (lambda: CLIENT.prompt("x", messages=[SystemMessage("")]), f"messages[0] {BLANK}"),
        (lambda: ChatClient(Odd(), system=""), f"system {BLANK}"),
        (lambda: CLIENT.replace(system=" "), f"system {BLANK}"),
    ],
)
def test_a_message_without_content_is_refused_before_it_is_sent(attempt: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError) as caught:
        attempt()
    assert says in str(caught.value)


def test_an_image_is_valid_content_without_text() -> None:
    image = ImagePart(url="https://example.invalid/a.png")
    assert CLIENT.prompt([image]).messages == (UserMessage([image]),)
    assert CLIENT.prompt([TextPart(""), image], messages=[AssistantMessage()]).messages[0] == AssistantMessage()


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_a_model_that_streams_other_objects_is_named_in_the_error(mode: str) -> None:
    with pytest.raises(TypeError, match="Odd must stream ChatChunk objects, not str"):
        run(mode, ChatClient(Odd()).prompt("x"))
