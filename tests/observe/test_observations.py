"""Observations go with the stage they observe."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.captured import Telemetry
from tests.events.watching import Watching
from tests.modes import ALL_MODES, run
from tests.observe.memories import Remembering
from tests.observe.runs import add, adds, fail
from traced_tools import ChatClient, ToolCall
from traced_tools.observe.scopes.scope import Scope
from traced_tools.observe.stages.observation import Observation
from traced_tools.testing import ScriptedChatModel


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_run_leaves_no_observation_to_the_garbage_collector(mode: str) -> None:
    before = observations()  # of other tests, such as those that an exception holds
    telemetry, watching = Telemetry(), Watching()
    client = ChatClient(
        ScriptedChatModel([[adds(1, 2), ToolCall("fail")], "x"]),
        tools=[add, fail],
        advisors=[watching, Remembering()],
        telemetry=telemetry.options,
    )
    run(mode, client.prompt("?"))
    assert [each for each in observations() if not any(each is other for other in before)] == []


def observations() -> list[object]:
    return [each for each in gc.get_objects() if isinstance(each, Observation | Scope)]
