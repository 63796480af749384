"""What durable runs do whose processes end at each step: one scenario for each thing that a run can do.

A `Process` counts the steps of a life: each write to the log of the run or of the conversation, before and after it,
each call of a model, and each effect of a tool. It ends at one of them.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel

from tests.memory.conversations import INSIDE, OUTSIDE
from traced_tools import (
    Advisor,
    Approve,
    AssistantMessage,
    ChatClient,
    LoopLimits,
    MemoryAdvisor,
    Message,
    Reject,
    ToolCall,
    ToolContext,
    ToolMessage,
    ToolSearchToolCallingAdvisor,
    Usage,
    UserMessage,
    tool,
)
from traced_tools.approvals import PendingStore
from traced_tools.approvals.pending_rows import WaitingApproval
from traced_tools.core import InputRequest, PendingInput, Provide, ToolAnnotations
from traced_tools.errors import InputRequired
from traced_tools.loop import ToolCallingAdvisor
from traced_tools.memory import ChatMemoryRepository, MessageWindowChatMemory
from traced_tools.models import ChatRequest
from traced_tools.search import KeywordToolIndex
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolCallingManager

T = TypeVar("T")
MEMORIES = ("none", "inside", "outside")
LOG_WRITES = ("submit", "append", "pause", "claim")
UNKNOWN = "The outcome of the call is unknown, and it may have run: its run was cut off"
_READS = ToolAnnotations(read_only=True)
_SIZES = {"type": "object", "properties": {"cm": {"type": "number"}}}


class Process(ABC):
    """A process that drives a run, until it ends at a step.

    Args:
        last: the number of the step at which it ends, from 1; 0 for none.
    """

    def __init__(self, last: int = 0) -> None:
        self.steps = 0
        self.last = last
        self._counting = threading.Lock()

    @abstractmethod
    def note(self, event: str) -> None:
        """Write an event to a ledger that outlives the process."""

    @abstractmethod
    def end(self) -> None:
        """End the process, and do not return."""

    def read(self, agent: str, messages: Sequence[Message]) -> None:  # noqa: B027
        """Take note of what a model is sent."""

    def step(self, name: str) -> None:
        """Count a step, at which the process may end."""
        with self._counting:
            self.steps += 1
            is_last = self.steps == self.last
        if is_last:
            self.note(f"died {name}")
            self.end()

    def around(self, name: str, write: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that writes, with a step before and after it."""

        def counted(*arguments: Any, **options: Any) -> Any:
            self.step(f"before {name}")
            result = write(*arguments, **options)
            self.step(f"after {name}")
            return result

        return counted

    def effect(self, name: str, result: str = "") -> str:
        """Do what a tool does: it begins, and ends."""
        self.step(f"before {name}")
        self.note(f"began {name}")
        self.step(f"in {name}")
        self.note(f"ended {name}")
        return result or f"{name} worked"

    def model(self, agent: str, answers: Sequence[Any], usage: Usage | None = None) -> ScriptedChatModel:
        """Return a model that answers by how many of its answers to the last question called tools."""

        def answer(request: ChatRequest) -> Any:
            number = len(answers_with_calls(request.messages))
            self.note(f"asked {agent} {number}")
            self.read(agent, request.messages)
            self.step(f"in the model of {agent}, answer {number}")
            return answers[number] if request.tools else "the end"

        return ScriptedChatModel([answer] * 50, usage=usage)


def answers_with_calls(messages: Sequence[Message]) -> list[AssistantMessage]:
    """Return the answers that call tools since the last question of the user."""
    answers: list[AssistantMessage] = []
    for message in messages:
        if isinstance(message, UserMessage) and message.text[-1:] in ".?" and len(message.text) < 20:
            answers = []
        elif isinstance(message, AssistantMessage) and message.tool_calls:
            answers.append(message)
    return answers


@dataclass
class Parts:
    """What a scenario needs for the client of one life."""

    process: Process
    store: PendingStore
    advisors: list[Advisor]
    models: list[ScriptedChatModel] = field(default_factory=list)

    def client(
        self, answers: Sequence[Any], tools: Sequence[Any], *, usage: Usage | None = None, **settings: Any
    ) -> ChatClient:
        self.models.append(self.process.model("desk", answers, usage))
        advisors = [*self.advisors, *settings.pop("advisors", ())]
        settings["pending_store"] = self.store
        return ChatClient(self.models[-1], name="desk", tools=[*tools], advisors=advisors, **settings)

    def agent(self, answers: Sequence[Any], tools: Sequence[Any], *, usage: Usage | None = None) -> Any:
        """Return a tool that asks another agent."""
        bank = ChatClient(self.process.model("bank", answers, usage), name="bank", tools=[*tools])
        return bank.as_tool("ask_bank", "Ask the bank.")

    def tool(self, name: str, **metadata: Any) -> Any:
        """Return a tool that has an effect, named by the id of its call."""

        @tool(name=name, **metadata)
        def act(context: ToolContext, text: str = "") -> str:
            """Act."""
            return self.process.effect(context.call_id)

        return act


@dataclass(frozen=True)
class Scenario:
    """A run, and what is decided about its calls.

    Attributes:
        client: returns the client of one life.
        repeatable: the calls that may run again, because their tools are idempotent or read only.
        decide: the decision about a call that waits.
        settings: what `drive` is passed.
        rounds: the calls that wait after their tools have begun, so that several outcomes are on record.
        ends_anyhow: whether an unknown outcome, which is an error and counts no tokens, may end the run elsewhere.
    """

    client: Callable[[Parts], ChatClient]
    repeatable: frozenset[str] = frozenset()
    decide: Callable[[WaitingApproval], Any] = lambda _: Approve(by="ana")
    settings: Mapping[str, Any] = field(default_factory=dict)
    ends_anyhow: bool = False
    rounds: frozenset[str] = frozenset()


def calls(*ids: str, **arguments: Any) -> list[ToolCall]:
    """Return calls, each of the tool that its id begins with."""
    return [ToolCall(call_id.split("-")[0], arguments, id=call_id) for call_id in ids]


def _plain(parts: Parts) -> ChatClient:
    tools = [parts.tool("look", annotations=_READS), parts.tool("post"), parts.tool("pay", requires_approval=True)]
    answers = [calls("look-1", "post-1"), calls("pay-1", "post-2"), calls("post-3"), "done"]
    return parts.client(answers, tools)


def _one_by_one(parts: Parts) -> ChatClient:
    """A run of one thread: no other one holds a lock of a store when the process is stopped."""
    tools = [parts.tool("look", annotations=_READS), parts.tool("post"), parts.tool("pay", requires_approval=True)]
    answers = [calls("look-1", "post-1"), calls("pay-1", "post-2"), "done"]
    loop = ToolCallingAdvisor(ToolCallingManager(max_concurrency=1))
    return parts.client(answers, tools, tool_calling_advisor=loop)


def _parallel(parts: Parts) -> ChatClient:
    tools = [parts.tool("look", annotations=_READS), parts.tool("post")]
    return parts.client([calls("look-1", "post-1", "post-2", "post-3", "look-2"), calls("post-4"), "done"], tools)


def _rejected(parts: Parts) -> ChatClient:
    return parts.client(
        [calls("pay-1", "pay-2", "post-1"), "done"], [parts.tool("pay", requires_approval=True), parts.tool("post")]
    )


def _reject_second(call: WaitingApproval) -> Any:
    return Reject("too much", by="ana") if call.call_id == "pay-2" else Approve(by="ana")


def _held(parts: Parts) -> ChatClient:
    tools = [parts.tool("post"), parts.tool("pay", requires_approval=True)]
    loop = ToolCallingAdvisor(ToolCallingManager(hold="batch"))
    answers = [calls("post-1", "pay-1", "post-2"), calls("post-3", "pay-2"), "done"]
    return parts.client(answers, tools, tool_calling_advisor=loop)


def _searching(parts: Parts) -> ChatClient:
    fillers = [parts.tool(f"filler_{number}") for number in range(5)]
    invoice = parts.tool("invoice", description="Send an invoice to a customer.")
    refund = parts.tool("refund", description="Refund a payment.", requires_approval=True)
    post = parts.tool("post", description="Publish a note.")
    answers = [
        [ToolCall("search_tools", {"query": "invoice"}, id="search-1")],
        [*calls("invoice-1"), ToolCall("search_tools", {"query": "refund payment"}, id="search-2")],
        [*calls("refund-1"), ToolCall("search_tools", {"query": "publish note"}, id="search-3")],
        calls("post-1", "invoice-2"),
        "done",
    ]
    loop = ToolSearchToolCallingAdvisor(KeywordToolIndex(), max_results=1)
    return parts.client(answers, [*fillers, invoice, refund, post], advisors=[loop])


def _limited(parts: Parts, limits: LoopLimits, usage: Usage | None = None) -> ChatClient:
    tools = [parts.tool("post"), parts.tool("look", annotations=_READS)]
    answers = [[*calls(f"post-{number}a", f"post-{number}b", text=str(number))] for number in range(9)]
    answers_or_end: list[Any] = [*answers]
    return parts.client(answers_or_end, tools, limits=limits, usage=usage)


def _nested_limited(parts: Parts, limits: LoopLimits) -> ChatClient:
    usage = Usage(input_tokens=10, output_tokens=5)
    bank = parts.agent([calls("look-b"), "rich"], [parts.tool("look", annotations=_READS)], usage=usage)
    answers = [[ToolCall("ask_bank", {"question": f"{number}?"}, id=f"ask-{number}")] for number in range(9)]
    return parts.client(answers, [bank], limits=limits, usage=usage)


def _polling(parts: Parts) -> ChatClient:
    process = parts.process

    @tool(annotations=_READS)
    def poll(context: ToolContext) -> str:
        """Look whether something has changed; it changes with each of the first calls."""
        return process.effect(context.call_id, str(min(int(context.call_id.removeprefix("poll-")), 3)))

    answers = [[ToolCall("poll", {}, id=f"poll-{number}")] for number in range(12)]
    return parts.client(answers, [poll], limits=LoopLimits(max_repeated_calls=3, on_limit="stop"))


def _failing(parts: Parts) -> ChatClient:
    process = parts.process

    @tool
    def fail(context: ToolContext, text: str) -> str:
        """Fail."""
        process.effect(context.call_id)
        raise ValueError("no")

    answers = [calls("post-0"), *([ToolCall("fail", {"text": str(n)}, id=f"fail-{n}")] for n in range(9))]
    limits = LoopLimits(max_consecutive_errors=2, on_limit="stop")
    return parts.client(answers, [fail, parts.tool("post")], limits=limits)


def _direct(parts: Parts) -> ChatClient:
    return parts.client(
        [calls("look-1"), calls("report-1"), "done"], [parts.tool("look"), parts.tool("report", return_direct=True)]
    )


def _direct_approved(parts: Parts) -> ChatClient:
    tools = [parts.tool("report", return_direct=True), parts.tool("pay", return_direct=True, requires_approval=True)]
    return parts.client([calls("report-1", "pay-1"), "done"], tools)


def _asking_tool(process: Process, name: str, rounds: int = 1, **metadata: Any) -> Any:
    @tool(name=name, **metadata)
    def order(context: ToolContext) -> str:
        """Order something."""
        number = 0 if context.input is None else context.input.asked.round
        result = process.effect(f"{context.call_id} round {number}")
        if number < rounds:
            params = {"message": "Which size?", "requestedSchema": _SIZES}
            question = InputRequest(key="size", method="elicitation/create", params=params)
            raise InputRequired(PendingInput(requests=(question,), round=number + 1))
        return result

    return order


def _asking(parts: Parts) -> ChatClient:
    tools = [
        _asking_tool(parts.process, "order", rounds=2),
        _asking_tool(parts.process, "buy", requires_approval=True),
        parts.tool("post"),
    ]
    return parts.client([calls("order-1", "post-1", "buy-1"), calls("post-2"), "done"], tools)


def _answer(call: WaitingApproval) -> Any:
    return Provide({"size": {"cm": 4}}, by="ana") if call.input else Approve(by="ana")


class Weather(BaseModel):
    """What the run with structured output answers."""

    city: str
    degrees: int


def _structured(parts: Parts) -> ChatClient:
    return parts.client([calls("look-1"), calls("post-1"), '{"city": "Ulm", "degrees": 3}'], _two_tools(parts))


def _two_tools(parts: Parts) -> list[Any]:
    return [parts.tool("look", annotations=_READS), parts.tool("post")]


def _corrected(parts: Parts) -> ChatClient:
    """A run whose first answer is not valid, so that the model is asked again."""
    client = parts.client([calls("look-1"), ""], _two_tools(parts))
    model = parts.models[-1]
    process = parts.process

    def answer(request: ChatRequest) -> Any:
        number = len(answers_with_calls(request.messages))
        is_corrected = any(isinstance(item, UserMessage) and "Go." not in item.text for item in request.messages)
        process.note(f"asked desk {number}{' again' if is_corrected else ''}")
        process.step(f"in the model, answer {number}")
        if is_corrected:
            return '{"city": "Ulm", "degrees": 3}'
        return calls("look-1") if number == 0 else '{"city": "Ulm"}'

    model._turns = [answer] * 50
    return client


def _agents(parts: Parts) -> ChatClient:
    bank = parts.agent([calls("look-b", "post-b"), "rich"], _two_tools(parts))
    answers = [
        [ToolCall("ask_bank", {"question": "How rich?"}, id="ask-1"), *calls("post-1")],
        calls("post-2"),
        "done",
    ]
    return parts.client(answers, [bank, parts.tool("post")])


def _waiting_agents(parts: Parts) -> ChatClient:
    tools = [parts.tool("pay", requires_approval=True), parts.tool("post"), _asking_tool(parts.process, "order")]
    bank = parts.agent([calls("pay-b", "post-b"), calls("order-b"), "rich"], tools)
    answers = [
        [ToolCall("ask_bank", {"question": "Pay."}, id="ask-1"), *calls("post-1", "pay-1")],
        calls("post-2"),
        "done",
    ]
    return parts.client(answers, [bank, parts.tool("post"), parts.tool("pay", requires_approval=True)])


TOKENS = Usage(input_tokens=10, output_tokens=5)
SCENARIOS: dict[str, Scenario] = {
    "plain": Scenario(_plain, frozenset({"look-1"})),
    "one by one": Scenario(_one_by_one, frozenset({"look-1"})),
    "parallel": Scenario(_parallel, frozenset({"look-1", "look-2"})),
    "rejected": Scenario(_rejected, decide=_reject_second),
    "held": Scenario(_held),
    "searching": Scenario(_searching, frozenset({"search-1", "search-2", "search-3"})),
    "iterations": Scenario(partial(_limited, limits=LoopLimits(max_iterations=3, on_limit="stop"))),
    "iterations raising": Scenario(partial(_limited, limits=LoopLimits(max_iterations=3, on_limit="raise"))),
    "iterations concluding": Scenario(partial(_limited, limits=LoopLimits(max_iterations=2))),
    "tool calls": Scenario(partial(_limited, limits=LoopLimits(max_tool_calls=5, on_limit="stop"))),
    "calls per tool": Scenario(partial(_limited, limits=LoopLimits(max_calls_per_tool=5, on_limit="stop"))),
    "tokens": Scenario(partial(_limited, limits=LoopLimits(max_tokens=40, on_limit="stop"), usage=TOKENS)),
    "nested tokens": Scenario(
        partial(_nested_limited, limits=LoopLimits(max_tokens=100, on_limit="stop")),
        frozenset({"look-b"}),
        ends_anyhow=True,
    ),
    "nested tool calls": Scenario(
        partial(_nested_limited, limits=LoopLimits(max_tool_calls=5, on_limit="stop")), frozenset({"look-b"})
    ),
    "polling": Scenario(_polling, frozenset({f"poll-{number}" for number in range(12)})),
    "failing": Scenario(_failing, ends_anyhow=True),
    "direct": Scenario(_direct, ends_anyhow=True),
    "direct approved": Scenario(_direct_approved, ends_anyhow=True),
    "asking": Scenario(_asking, decide=_answer, rounds=frozenset({"order-1", "buy-1"})),
    "structured": Scenario(_structured, frozenset({"look-1"}), settings={"output": Weather}),
    "corrected": Scenario(_corrected, frozenset({"look-1"}), settings={"output": Weather}),
    "agents": Scenario(_agents, frozenset({"look-b"})),
    "waiting agents": Scenario(_waiting_agents, decide=_answer, rounds=frozenset({"ask-1"})),
}


def memory_of(repository: ChatMemoryRepository, memory: str) -> list[Advisor]:
    """Return the advisor that keeps the conversation of a run; none if nothing does."""
    if memory == "none":
        return []
    window = MessageWindowChatMemory(repository, 100)
    return [MemoryAdvisor(window, order=INSIDE if memory == "inside" else OUTSIDE)]


def decide_all(store: PendingStore, scenario: Scenario) -> None:
    """Decide about all calls that wait."""
    for call in store.pending():
        store.decide(call.call_id, scenario.decide(call), run_id=call.run_id)


def results_in(messages: Sequence[Message]) -> dict[str, str]:
    """Return the results that a model reads, by the ids of their calls."""
    parts = [part for message in messages if isinstance(message, ToolMessage) for part in message.results]
    return {part.call_id: part.content for part in parts}


def written_by(process: Process, part: T, *methods: str) -> T:
    """Return a part of a store to which a process writes, with steps before and after each write."""
    own = copy(part)  # threads of a process that has ended must not write as the next one
    for name in methods:
        setattr(own, name, process.around(name, getattr(own, name)))
    return own
