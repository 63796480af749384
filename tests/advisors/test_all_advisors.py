"""All advisors of the package, each alone and many in one chain, in all four modes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from docs.house import public_names
from tests.memory.conversations import INSIDE, OUTSIDE, shown
from tests.modes import MODES, run
from traced_tools import (
    Advisor,
    ApprovalAdvisor,
    AuditAdvisor,
    AuditTrail,
    BaseAdvisor,
    CacheToolAdvisor,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    EvaluationAdvisor,
    LoggingAdvisor,
    MemoryAdvisor,
    ObserverAdvisor,
    Policy,
    PolicyAdvisor,
    Reject,
    RetryToolAdvisor,
    Rule,
    SafeguardAdvisor,
    StructuredOutputAdvisor,
    ToolCall,
    ToolSearchToolCallingAdvisor,
    advisor,
    tool,
)
from traced_tools.audit import AuditReader
from traced_tools.core import Evaluation, ToolAnnotations, ToolMetadata
from traced_tools.events import EventExporter
from traced_tools.loop import ToolLoopAdvisor, TranscriptAdvisor
from traced_tools.loop.advisor import AdviseNext
from traced_tools.memory import InMemoryChatMemoryRepository, MessageWindowChatMemory
from traced_tools.observe import Event
from traced_tools.search import RegexToolIndex
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import FunctionToolCallback


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


# Each advisor alone.


@dataclass
class Agent:
    """An agent that asks a model with one advisor, in one mode."""

    mode: str
    directory: Path
    measured: list[str] = field(default_factory=list)

    def answers(
        self, one: Advisor, *turns: Any, questions: Sequence[str] = ("How warm?",), requires_approval: bool = False
    ) -> ChatClientResponse:
        """Return the response to the last question."""
        self.model = ScriptedChatModel(turns)
        safe = ToolAnnotations(read_only=True)
        measuring = FunctionToolCallback(
            self.measure, metadata=ToolMetadata(annotations=safe, requires_approval=requires_approval)
        )
        client = ChatClient(self.model, tools=[measuring], advisors=[one])
        *_, response = [run(self.mode, client.prompt(each, conversation_id="c")) for each in questions]
        return response

    def measure(self, city: str) -> str:
        """Measure the temperature of a city; the first attempt fails in Oslo."""
        self.measured.append(city)
        if self.measured == ["Oslo"]:
            raise ConnectionError
        return "21"


def measures(city: str = "Rome") -> ToolCall:
    return ToolCall("measure", {"city": city})


def check_memory(agent: Agent, order: int, rounds: list[str]) -> None:
    memory = MemoryAdvisor(MessageWindowChatMemory(InMemoryChatMemoryRepository()), order=order)
    agent.answers(memory, measures(), "Warm.", "Yes.", questions=["How warm?", "Sure?"])
    sent = shown(agent.model.requests[-1].messages)
    assert sent == ["user How warm?", *rounds, "assistant Warm.", "user Sure?"]


def check_memory_outside(agent: Agent) -> None:
    check_memory(agent, OUTSIDE, [])


def check_memory_inside(agent: Agent) -> None:
    check_memory(agent, INSIDE, ["call measure", "tool 21"])


def check_structured_output(agent: Agent) -> None:
    assert agent.answers(StructuredOutputAdvisor(int), measures(), "warm", "21").output == 21
    assert len(agent.model.requests) == 3


def check_evaluation(agent: Agent) -> None:
    judge = EvaluationAdvisor(lambda answer: float("21" in answer.content))
    response = agent.answers(judge, measures(), "Warm.", "It is 21.")
    assert ([each.passed for each in response.evaluations], response.content) == ([True], "It is 21.")


def check_policy(agent: Agent) -> None:
    policy = Policy([Rule("no", tool="measure", then="deny")], default="allow")
    [result] = agent.answers(PolicyAdvisor(policy), measures(), "Sorry.").tool_results
    assert (result.decision, result.reason_code, agent.measured) == ("denied", "no", [])


def check_approval(agent: Agent) -> None:
    asking = ApprovalAdvisor(lambda request: Reject("no", by="ana"))
    [result] = agent.answers(asking, measures(), "Sorry.", requires_approval=True).tool_results
    assert (result.decision, result.by, agent.measured) == ("rejected", "ana", [])


def check_observer(agent: Agent) -> None:
    events = Collector()
    observer = ObserverAdvisor([events])
    agent.answers(observer, measures(), "Warm.")
    observer.close()
    assert {"run_started", "tool_started", "tool_finished", "run_finished"} <= events.types


def check_audit(agent: Agent) -> None:
    with AuditTrail(agent.directory / "audit.db") as trail:
        response = agent.answers(AuditAdvisor(trail), measures(), "Warm.")
    [call] = AuditReader(agent.directory / "audit.db").run(response.run_id).calls
    assert (call.intent is not None, call.outcome is not None) == (True, True)


def check_safeguard(agent: Agent) -> None:
    response = agent.answers(SafeguardAdvisor(["secret"], answer="No."), measures(), "It is a secret.")
    assert (response.content, response.stop_reason) == ("No.", "advisor")


def check_logging(agent: Agent) -> None:
    records: list[logging.LogRecord] = []
    log = logging.Logger("own")
    log.addFilter(lambda record: not records.append(record))
    agent.answers(LoggingAdvisor(log), measures(), "Warm.")
    assert [each.getMessage().split()[0] for each in records] == ["request", "response"]


def check_retry_tool(agent: Agent) -> None:
    [result] = agent.answers(RetryToolAdvisor(), measures("Oslo"), "Warm.").tool_results
    assert (result.content, agent.measured) == ("21", ["Oslo", "Oslo"])


def check_cache_tool(agent: Agent) -> None:
    results = agent.answers(CacheToolAdvisor("measure"), measures(), measures(), "Warm.").tool_results
    assert ([each.content for each in results], agent.measured) == (["21", "21"], ["Rome"])


CHECKS: dict[str, Callable[[Agent], None]] = {
    "MemoryAdvisor outside": check_memory_outside,
    "MemoryAdvisor inside": check_memory_inside,
    "StructuredOutputAdvisor": check_structured_output,
    "EvaluationAdvisor": check_evaluation,
    "PolicyAdvisor": check_policy,
    "ApprovalAdvisor": check_approval,
    "ObserverAdvisor": check_observer,
    "AuditAdvisor": check_audit,
    "SafeguardAdvisor": check_safeguard,
    "LoggingAdvisor": check_logging,
    "RetryToolAdvisor": check_retry_tool,
    "CacheToolAdvisor": check_cache_tool,
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CHECKS)
def test_each_advisor_does_its_work(name: str, mode: str, tmp_path: Path) -> None:
    CHECKS[name](Agent(mode, tmp_path))


def test_every_advisor_of_the_package_is_among_them() -> None:
    exported = [getattr(import_module(place), name) for place, names in public_names().items() for name in names]
    advisors = {each for each in exported if isinstance(each, type) and issubclass(each, Advisor)}
    bases = {Advisor, BaseAdvisor, TranscriptAdvisor}
    shipped = {each.__name__ for each in advisors - bases if not issubclass(each, ToolLoopAdvisor)}
    assert {name.partition(" ")[0] for name in CHECKS} == shipped
