"""The panel "Where the time goes" adds up to all the time of runs, and names the hook of the advisor that takes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.clock import Clock, replaced_clock
from tests.dashboards.asked import IN_PANELS, Asked
from tests.dashboards.recorded_outcomes import Exposition, exposing, recording
from tests.judges.programs import program
from tests.judges.prometheus import PACKAGE
from traced_tools import Advisor, ChatClient, ChatClientResponse, TelemetryOptions, ToolCall, ToolResult
from traced_tools.models import ChatRequest
from traced_tools.observe import names
from traced_tools.otel.prometheus_names import label_name
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolInvocation
from traced_tools.tools.invocation import CallNext

pytestmark = pytest.mark.slow

PANEL = ("tt-home", 8)
SHOWN = [label_name(name) for name in (names.TIME_KIND, names.ADVISOR_NAME, names.ADVISOR_HOOK)]


@dataclass
class Redactor(Advisor):
    """Takes 12 seconds for the chunks of an answer, and one for each call of a tool."""

    clock: Clock
    name, order = "redactor", 400

    def on_chunk(self, chunk: ChatClientResponse) -> ChatClientResponse:
        self.clock.take(12 if chunk.text else 0)
        return chunk

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        self.clock.take(1)
        return await call_next(call)


def stream(client: ChatClient) -> None:
    with client.prompt("?").stream() as chunks:
        for _ in chunks:
            pass


def play(clock: Clock, telemetry: TelemetryOptions) -> None:
    """Stream the runs of two agents; a tool of the first one asks the second one, and the second one has no advisor."""

    def answer(request: ChatRequest) -> str:
        clock.take(2)
        return "Closed."

    researcher = ChatClient(ScriptedChatModel([answer]), name="researcher", telemetry=telemetry)

    def research() -> str:
        """Ask the researcher."""
        clock.take(3)
        return researcher.prompt("When?").call().content

    model = ScriptedChatModel([ToolCall("research"), answer])
    stream(ChatClient(model, name="planner", tools=[research], advisors=[Redactor(clock)], telemetry=telemetry))


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    program("prometheus", PACKAGE)
    with pytest.MonkeyPatch.context() as patched, exposing() as (telemetry, exposed):
        play(replaced_clock(patched), telemetry)
        played = exposed()
    with recording(
        tmp_path_factory.mktemp("time"), {"played": played, "parallel": hooks_of_parallel_calls(played)}
    ) as asked:
        yield asked


def hooks_of_parallel_calls(played: Exposition) -> Exposition:
    """Return what a scrape reads if hooks of calls at the same time took a hundred times as long as has passed."""
    hooks = "traced_tools_advisor_duration_seconds"
    return Exposition(
        {series: value * 100 if series[0].startswith(hooks) else value for series, value in played.growing.items()},
        played.gauges,
    )


def shares(asked: Asked, job: str, agent: str = ".+") -> dict[str, float]:
    """Return what the panel shows at the end of the time range, by the name of each series."""
    return {
        " ".join(labels[label] for label in SHOWN if label in labels) or query.legend: values[-1]
        for query in IN_PANELS
        if (query.board, query.panel) == PANEL
        for labels, values in asked.of(job).lines(query, agent=agent)
        if values[-1] > 1e-4
    }


def test_the_shares_add_up_and_name_the_hook_of_the_advisor(asked: Asked) -> None:
    assert shares(asked, "played", "planner") == {
        "model": pytest.approx(2 / 20, abs=0.001),
        "tool": pytest.approx(5 / 20, abs=0.001),
        "redactor on_chunk": pytest.approx(12 / 20, abs=0.001),
        "redactor advise_tool": pytest.approx(1 / 20, abs=0.001),
    }


def test_the_time_of_a_run_inside_a_tool_is_in_both_runs(asked: Asked) -> None:
    assert shares(asked, "played", "researcher") == {"model": pytest.approx(1, abs=0.001)}
    assert shares(asked, "played")["model"] == pytest.approx(4 / 22, abs=0.001)


@pytest.mark.parametrize("job", ["played", "parallel"])
def test_the_shares_add_up_whatever_hooks_of_parallel_calls_take(asked: Asked, job: str) -> None:
    queries = [query for query in IN_PANELS if (query.board, query.panel) == PANEL]
    lines = [values for query in queries for _, values in asked.of(job).lines(query)]
    for at in range(max(map(len, lines))):
        assert sum(values[at] for values in lines) == pytest.approx(1)
