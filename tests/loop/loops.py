"""What the tests of the tool loop share: a loop that notes its hooks, and what holds of every conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from traced_tools import AssistantMessage, ChatClientRequest, ChatClientResponse, Message, ToolMessage
from traced_tools.core import ToolExecutionResult
from traced_tools.loop import ToolCallingAdvisor


class Loop(ToolCallingAdvisor):
    """Notes each of its hooks."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.seen: list[str] = []
        self.finals: list[ChatClientResponse] = []

    def initialize(self, request: ChatClientRequest) -> ChatClientRequest:
        self.seen.append(f"initialize {request.iteration}")
        return request

    async def before(self, request: ChatClientRequest) -> ChatClientRequest:
        self.seen.append(f"before {request.iteration}")
        return request

    def after(self, response: ChatClientResponse) -> ChatClientResponse:
        self.seen.append(f"after {response.iteration}")
        return response

    def next_instructions(
        self, request: ChatClientRequest, response: ChatClientResponse, result: ToolExecutionResult
    ) -> Sequence[Message]:
        self.seen.append(f"next_instructions {response.iteration}")
        return super().next_instructions(request, response, result)

    async def finalize(self, response: ChatClientResponse) -> ChatClientResponse:
        self.seen.append("finalize")
        self.finals.append(response)
        return response


def assert_complete(messages: Sequence[Message]) -> None:
    """Each requested call has its result right behind it, in call order."""
    for index, message in enumerate(messages):
        if isinstance(message, AssistantMessage) and message.tool_calls:
            answer = messages[index + 1]
            assert isinstance(answer, ToolMessage)
            assert [call.id for call in message.tool_calls] == [part.call_id for part in answer.results]
