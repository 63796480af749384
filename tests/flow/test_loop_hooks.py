"""The hooks of the loop: blocking or async, in one order, with `finalize` called once whatever fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.modes import MODES, run
from traced_tools import ChatClient, ChatClientRequest, ChatClientResponse, Message, ToolCall, UserMessage
from traced_tools.core import ToolExecutionResult
from traced_tools.flow import perform
from traced_tools.loop import ToolCallingAdvisor
from traced_tools.testing import ScriptedChatModel


def work() -> str:
    return "worked"


class Recording(ToolCallingAdvisor):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def initialize(self, request: ChatClientRequest) -> ChatClientRequest:
        self.seen.append("initialize")
        return request

    async def before(self, request: ChatClientRequest) -> ChatClientRequest:
        await perform(self.seen.append, f"before {request.iteration}")
        return request

    def after(self, response: ChatClientResponse) -> ChatClientResponse:
        self.seen.append(f"after {response.iteration}")
        return response

    def finalize(self, response: ChatClientResponse) -> ChatClientResponse:
        self.seen.append("finalize")
        return response


def test_blocking_and_async_loop_hooks_run_in_the_same_order_in_every_mode() -> None:
    for mode in MODES:
        loop = Recording()
        client = ChatClient(ScriptedChatModel([ToolCall("work"), "done"]), tools=[work], tool_calling_advisor=loop)
        run(mode, client.prompt("?"))
        assert loop.seen == ["initialize", "before 1", "after 1", "before 2", "after 2", "finalize"], mode


class Instructing(ToolCallingAdvisor):
    async def next_instructions(
        self, request: ChatClientRequest, response: ChatClientResponse, result: ToolExecutionResult
    ) -> Sequence[Message]:
        note = await perform(lambda: "go on")
        return (*result.conversation_history, UserMessage(note))


def test_the_next_instructions_may_come_from_an_async_hook(mode: str) -> None:
    model = ScriptedChatModel([ToolCall("work"), "done"])
    run(mode, ChatClient(model, tools=[work], tool_calling_advisor=Instructing()).prompt("?"))
    assert model.requests[1].messages[-1] == UserMessage("go on")


class Failing(ToolCallingAdvisor):
    def __init__(self, hook: str) -> None:
        super().__init__()
        self.hook = hook
        self.finalized = 0

    def _maybe_fail(self, hook: str, value: Any) -> Any:
        if hook == self.hook:
            raise LookupError(hook)
        return value

    def initialize(self, request: ChatClientRequest) -> Any:
        return self._maybe_fail("initialize", request)

    def before(self, request: ChatClientRequest) -> Any:
        return self._maybe_fail("before", request)

    def after(self, response: ChatClientResponse) -> Any:
        return self._maybe_fail("after", response)

    def next_instructions(
        self, request: ChatClientRequest, response: ChatClientResponse, result: ToolExecutionResult
    ) -> Any:
        return self._maybe_fail("next_instructions", super().next_instructions(request, response, result))

    def finalize(self, response: ChatClientResponse) -> Any:
        self.finalized += 1
        return self._maybe_fail("finalize", response)


@pytest.mark.parametrize("hook", ["initialize", "before", "after", "next_instructions", "finalize"])
def test_an_error_of_a_hook_passes_through_and_finalize_is_still_called_once(
    mode: str, hook: str, telemetry: Telemetry
) -> None:
    loop = Failing(hook)
    client = ChatClient(
        ScriptedChatModel([ToolCall("work"), "done"]),
        tools=[work],
        tool_calling_advisor=loop,
        telemetry=telemetry.options,
    )
    with pytest.raises(LookupError, match=hook):
        run(mode, client.prompt("?"))
    assert loop.finalized == 1
    telemetry.check_each_ended_once()
    telemetry.check_run("error", "LookupError")
