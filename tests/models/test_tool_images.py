"""Images that tools return reach the model although a result can only be text."""

from __future__ import annotations

from typing import Any

from tests.models.loops import replies
from tests.modes import run
from traced_tools import AssistantMessage, ChatClient, ImagePart, ToolCall, ToolMessage, UserMessage
from traced_tools.core import ToolResultPart
from traced_tools.models import ChatRequest, OpenAIChatModel
from traced_tools.models.openai.chat import OpenAIChatCodec
from traced_tools.models.openai.servers import Server
from traced_tools.testing import ReplayServer

CODEC = OpenAIChatCodec("m", Server("openai"))
DOT = ImagePart(data=b"\x01", media_type="image/gif")
MAP = ImagePart(url="https://example.org/map.png")
SENT_DOT = {"type": "image_url", "image_url": {"url": "data:image/gif;base64,AQ=="}}
SENT_MAP = {"type": "image_url", "image_url": {"url": "https://example.org/map.png"}}


def result(call_id: str, *images: ImagePart) -> ToolResultPart:
    return ToolResultPart(call_id=call_id, name="draw", content=f"drawn by {call_id}", images=images)


def calls(*ids: str) -> AssistantMessage:
    return AssistantMessage(tool_calls=[ToolCall("draw", "{}", each) for each in ids])


def sent(*messages: Any) -> list[dict[str, Any]]:
    body = CODEC.encode(ChatRequest((UserMessage("draw"), *messages)), stream=False)
    return list(body["messages"][1:])


def said(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": f"drawn by {call_id}"}


def heading(call_id: str) -> dict[str, Any]:
    return {"type": "text", "text": f"Images returned by the tool call {call_id}:"}


def test_images_of_a_result_follow_as_user_content_that_names_the_call() -> None:
    assert sent(calls("c1"), ToolMessage([result("c1", DOT, MAP)]))[1:] == [
        said("c1"),
        {"role": "user", "content": [heading("c1"), SENT_DOT, SENT_MAP]},
    ]


def test_the_images_of_a_batch_follow_all_its_results_in_their_order() -> None:
    results = [result("c1", DOT), result("c2"), result("c3", MAP)]
    assert sent(calls("c1", "c2", "c3"), ToolMessage(results))[1:] == [
        said("c1"),
        said("c2"),
        said("c3"),
        {"role": "user", "content": [heading("c1"), SENT_DOT, heading("c3"), SENT_MAP]},
    ]


def test_results_in_several_messages_are_not_separated_by_images() -> None:
    messages = sent(calls("c1", "c2"), ToolMessage([result("c1", DOT)]), ToolMessage([result("c2", MAP)]))
    assert [message["role"] for message in messages] == ["assistant", "tool", "tool", "user"]
    assert messages[-1]["content"] == [heading("c1"), SENT_DOT, heading("c2"), SENT_MAP]


def test_each_batch_is_followed_by_its_own_images() -> None:
    messages = sent(calls("c1"), ToolMessage([result("c1", DOT)]), calls("c2"), ToolMessage([result("c2", MAP)]))
    assert [message["role"] for message in messages] == ["assistant", "tool", "user", "assistant", "tool", "user"]
    assert [messages[place]["content"][0] for place in (2, 5)] == [heading("c1"), heading("c2")]


def test_without_images_nothing_follows_the_results() -> None:
    assert sent(calls("c1", "c2"), ToolMessage([result("c1"), result("c2")]))[1:] == [said("c1"), said("c2")]


def test_the_next_user_message_stays_separate() -> None:
    messages = sent(calls("c1"), ToolMessage([result("c1", DOT)]), UserMessage("nice"))
    assert messages[2:] == [
        {"role": "user", "content": [heading("c1"), SENT_DOT]},
        {"role": "user", "content": "nice"},
    ]


def test_an_image_that_a_tool_returns_is_in_the_next_request(mode: str) -> None:
    def draw() -> ImagePart:
        return DOT

    with ReplayServer(replies(mode, "draw", "{}", "A dot.")) as server:
        model = OpenAIChatModel("m", base_url=server.url, retries=0)
        response = run(mode, ChatClient(model, tools=[draw]).prompt("draw"), model)
        messages = server.requests[1].json()["messages"]
    assert response.content == "A dot."
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "user"]
    assert isinstance(messages[2]["content"], str)
    assert messages[3]["content"] == [heading("c1"), SENT_DOT]
