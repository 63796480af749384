"""An application that uses logfire gets all that we emit, in logfire's own traces."""

from __future__ import annotations

from typing import Any

import pytest

from tests.judges.instrumented import printed_by
from tests.modes import ALL_MODES
from traced_tools.observe import names

pytestmark = pytest.mark.slow  # each test starts processes

RUN = ["outer", "invoke_agent assistant"]
PASS = [*RUN, "advise tool_calling", "iteration"]


@pytest.fixture(scope="module")
def printed() -> Any:
    return printed_by("tests.judges.logfire_app")


@pytest.mark.parametrize("given", [0, 1], ids=["global providers", "named providers"])
@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_run_is_part_of_logfires_trace(printed: Any, mode: str, given: int) -> None:
    got = printed["runs"][mode][given]
    assert RUN in got["paths"]
    assert got["paths"].count([*PASS, "chat scripted"]) == 2
    assert [*PASS, "execute_tool add", "adding"] in got["paths"]
    assert [*PASS, "refuse_tool add"] in got["paths"]
    assert not [path for path in got["paths"] if path[0] != "outer"]
    assert got["traces"] == 1
    assert got["restored"]


@pytest.mark.parametrize("mode", ALL_MODES)
def test_events_and_metrics_of_a_run_reach_logfire(printed: Any, mode: str) -> None:
    for got in printed["runs"][mode]:
        assert got["events"].count(names.TOOL_INTENT_EVENT.name) == 2
        assert got["events"].count(names.LOOP_STOP_EVENT.name) == 1
    assert {names.INVOKE_AGENT_DURATION.name, names.TOOL_DECISIONS.name, names.RUN_ACTIVE.name} <= {*printed["metrics"]}
