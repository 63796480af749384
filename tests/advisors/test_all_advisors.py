"""All advisors of the package in one chain, in all four modes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
from pydantic import BaseModel

from tests.modes import MODES, run
from traced_tools import (
    AuditAdvisor,
    AuditTrail,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    Evaluation,
    EvaluationAdvisor,
    InMemoryChatMemoryRepository,
    LoggingAdvisor,
    MemoryAdvisor,
    MessageWindowChatMemory,
    ObserverAdvisor,
    SafeguardAdvisor,
    ToolCall,
    ToolSearchToolCallingAdvisor,
    advisor,
    tool,
)
from traced_tools.advisors.base import AdviseNext
from traced_tools.audit import AuditReader
from traced_tools.events import Event, EventExporter
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools.search import RegexToolIndex


class Forecast(BaseModel):
    city: str
    degrees: int


class Collector(EventExporter):
    name = "collector"

    def __init__(self) -> None:
        self.types: set[str] = set()

    def export(self, events: Sequence[Event]) -> None:
        self.types |= {event.type for event in events}


@tool
def measure(city: str) -> int:
    """Measure the temperature of a city."""
    return 21


def is_warm(response: ChatClientResponse[Forecast]) -> Evaluation:
    warm = response.output.degrees > 15
    return Evaluation(float(warm), feedback="" if warm else "Measure again.")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("order", [200, 400], ids=["outside", "inside"])
def test_all_advisors_of_a_chain_do_their_work(
    mode: str, order: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    repository, events = InMemoryChatMemoryRepository(), Collector()
    observer, seen = ObserverAdvisor([events]), list[str | None]()

    @advisor(order=60)
    async def note(request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        seen.append(request.conversation_id)
        return await call_next(request)

    answers = ["21 degrees", '{"city": "Rome", "degrees": 1}', '{"city": "Rome", "degrees": 21}']
    looks = ToolCall("search_tools", {"query": "measure"})
    model = ScriptedChatModel([looks, ToolCall("measure", {"city": "Rome"}), *answers])
    with AuditTrail(tmp_path / "audit.db") as trail:
        client = ChatClient(
            model,
            tools=[measure],
            advisors=[
                MemoryAdvisor(MessageWindowChatMemory(repository), order=order),
                EvaluationAdvisor(is_warm),
                SafeguardAdvisor(["secret"]),
                ToolSearchToolCallingAdvisor(index=RegexToolIndex()),
                LoggingAdvisor(),
                observer,
                AuditAdvisor(trail),
                note,
            ],
        )
        response = run(mode, client.prompt("How warm is Rome?", conversation_id="c", output=Forecast))
        blocked = run(mode, client.prompt("Tell me a secret.", conversation_id="c"))
    assert response.output == Forecast(city="Rome", degrees=21)
    assert [each.passed for each in response.evaluations] == [True]
    assert blocked.stop_reason == "advisor"
    assert [len(request.tools) for request in model.requests] == [1, 2, 2, 2, 2]
    assert seen == ["c", "c"]
    kept = repository.read("c").messages
    assert [message.role for message in (kept[0], kept[-1])] == ["user", "assistant"]
    assert kept[-1].text == answers[-1]
    assert sum(record.name == "traced_tools.chat" for record in caplog.records) == 4
    observer.close()
    assert {"run_started", "memory_stored", "answer_evaluated", "run_finished"} <= events.types
    search, call = AuditReader(tmp_path / "audit.db").run(response.run_id).calls
    assert None not in (search.intent, search.outcome, call.intent, call.outcome)
