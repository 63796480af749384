"""The local data of an event never leaves the process."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.markers import MARKER, everything
from tests.modes import MODES, run
from traced_tools import Advisor, ChatClient, ToolCall
from traced_tools.events import Event, ToolDecided, ToolEvent, ToolFinished, ToolIntended, ToolStarted
from traced_tools.testing import ScriptedChatModel


class Watching(Advisor):
    """Keeps the events of calls."""

    name, order = "watching", 400

    def __init__(self) -> None:
        self.events: list[ToolEvent] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, ToolEvent):
            self.events.append(event)


@pytest.mark.parametrize("mode", MODES)
def test_an_advisor_reads_the_call_its_tool_and_its_result_from_local_data(mode: str) -> None:
    def echo(text: str) -> str:
        """Echo."""
        return f"{text} {text}"

    watching, asked = Watching(), ToolCall("echo", {"text": MARKER}, id="1")
    model = ScriptedChatModel([[asked, ToolCall("nobody", MARKER, id="2")], "x"])
    run(mode, ChatClient(model, tools=[echo], advisors=[watching]).prompt("?"))
    found = {(type(each), each.call_id): each.kept for each in watching.events}
    call, tool = found.pop((ToolIntended, "1"))
    assert (call, tool.definition.name) == (asked, "echo")
    assert found.pop((ToolIntended, "2"))[1] is None
    assert found.pop((ToolFinished, "1")) == f"{MARKER} {MARKER}"
    assert found == {(ToolDecided, "1"): None, (ToolDecided, "2"): None, (ToolStarted, "1"): None}
    assert MARKER not in everything([repr(watching.events), [each.model_dump() for each in watching.events]])


@pytest.fixture
def event() -> ToolIntended:
    fields: dict[str, Any] = {"id": "1", "time": datetime.now(UTC), "run_id": "r", "sequence": 1, "agent": "a"}
    call = {"call_id": "1", "tool": "t", "source": "local", "batch_index": 0, "batch_size": 1, "arguments_size": 2}
    event = ToolIntended(**fields, **call, iteration=1)
    event.keep((MARKER, None))
    return event


def test_local_data_is_in_no_json_pickle_repr_or_schema(event: ToolIntended) -> None:
    assert event.kept == (MARKER, None)
    told = [event.model_dump_json(), str(event.model_dump()), repr(event), str(event), repr(vars(event))]
    assert MARKER not in everything(told)
    assert MARKER.encode() not in pickle.dumps(event)
    assert "kept" not in str(ToolIntended.model_json_schema())


@pytest.mark.parametrize(
    "copied",
    [
        lambda event: pickle.loads(pickle.dumps(event)),
        lambda event: ToolIntended.model_validate_json(event.model_dump_json()),
        copy.deepcopy,
        copy.copy,
        lambda event: event.told(),
        lambda event: event.replace(sequence=1),
    ],
)
def test_a_copy_is_an_equal_event_without_local_data(event: ToolIntended, copied: Any) -> None:
    other = copied(event)
    assert other == event
    assert other.kept is None
