"""A listener to calls, such as the audit trail, is handed the call itself; events hold nothing but their fields."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from tests.events.watching import Watching
from tests.markers import MARKER, everything
from tests.modes import MODES, run
from traced_tools import Advisor, ChatClient, ToolCall, UserMessage
from traced_tools.core.messages import AssistantMessage
from traced_tools.models import ChatResponse
from traced_tools.observe import Event, ToolDecided, ToolEvent, ToolFinished, ToolIntended, ToolStarted
from traced_tools.observe.stages.tool_call import ObservedCall, ToolCallListener
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolCallingManager, ToolInvocation
from traced_tools.tools.invocation import CallNext


class Listening(Watching, ToolCallListener):
    """Keeps what it can read of each call at each event of it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[tuple[int, int], ObservedCall] = {}
        self.read: dict[tuple[type[Event], str], tuple[str | None, str | None]] = {}

    def on_tool_call(self, call: ObservedCall, event: ToolIntended) -> None:
        assert self.events[-1] is event
        self.calls[event.iteration, event.batch_index] = call

    def on_event(self, event: Event) -> None:
        super().on_event(event)
        if isinstance(event, ToolEvent) and not isinstance(event, ToolIntended):
            call = self.calls[event.iteration, event.batch_index]
            self.read[type(event), event.call_id] = (call.runs_with, call.returned_text)


def echo(text: str) -> str:
    """Echo."""
    return f"{text} {text}"


ASKED = ToolCall("echo", {"text": MARKER}, id="1")
UNKNOWN = ToolCall("nobody", MARKER, id="2")


@pytest.mark.parametrize("mode", MODES)
def test_a_listener_reads_the_call_its_definition_and_what_the_tool_returned(mode: str) -> None:
    listening = Listening()
    model = ScriptedChatModel([[ASKED, UNKNOWN], "x"])
    run(mode, ChatClient(model, tools=[echo], advisors=[listening]).prompt("?"))
    known, unknown = listening.calls[1, 0], listening.calls[1, 1]
    assert (known.call, known.may_capture) == (ASKED, True)
    assert known.definition is not None and known.definition.name == "echo"
    assert (unknown.call, unknown.definition, unknown.may_capture) == (UNKNOWN, None, False)
    assert listening.read == {
        (ToolDecided, "1"): (None, None),
        (ToolStarted, "1"): (None, None),
        (ToolFinished, "1"): (None, f"{MARKER} {MARKER}"),
        (ToolDecided, "2"): (None, None),
    }
    assert MARKER not in everything([repr(listening.events), [each.model_dump() for each in listening.events]])


@pytest.mark.parametrize("mode", MODES)
def test_a_listener_reads_the_arguments_that_the_advisors_let_through(mode: str) -> None:
    class Other(Advisor):
        name, order = "other", 410

        async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> Any:
            return await call_next(call.replace(arguments={"text": "other"}))

    listening = Listening()
    client = ChatClient(ScriptedChatModel([ASKED, "x"]), tools=[echo], advisors=[listening, Other()])
    run(mode, client.prompt("?"))
    assert listening.read[ToolDecided, "1"] == ('{"text":"other"}', None)
    assert listening.read[ToolFinished, "1"] == ('{"text":"other"}', "other other")


def test_a_listener_to_calls_by_hand_is_handed_them_as_well() -> None:
    listening = Listening()
    response = ChatResponse(AssistantMessage([ASKED]))
    ToolCallingManager().execute_tool_calls([UserMessage("?")], response, tools=[echo], advisors=[listening])
    assert [call.call for call in listening.calls.values()] == [ASKED]


@pytest.mark.parametrize(
    "copied",
    [
        lambda event: pickle.loads(pickle.dumps(event)),
        lambda event: type(event).model_validate_json(event.model_dump_json()),
        copy.deepcopy,
        copy.copy,
        lambda event: event.for_export(),
        lambda event: event.replace(sequence=event.sequence),
    ],
)
def test_a_copy_of_an_event_is_the_same_event_and_holds_no_content(copied: Callable[[Event], Event]) -> None:
    watching = Watching()
    ChatClient(ScriptedChatModel([ASKED, "x"]), tools=[echo], advisors=[watching]).prompt("?").call()
    for event in watching.events:
        assert copied(event) == event
        assert MARKER.encode() not in pickle.dumps(event)
        assert MARKER not in everything([event.model_dump_json(), repr(event), repr(vars(event))])
