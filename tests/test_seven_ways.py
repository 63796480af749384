"""Random conversations run in seven ways, and each way does, sends, records and emits the same.

The ways are the four modes, the two drivers of a run that its caller steps through, and a blocking call beside a
running event loop. Because of this test, tests about other subjects run in two modes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.audit.draft_trails import KeptTrail
from tests.captured import Telemetry
from tests.events.watching import Watching
from tests.memory.conversations import INSIDE, OUTSIDE
from tests.modes import ALL_MODES, run
from tests.observe.closed_list import assert_consistent
from tests.observe.comparable import emitted_events, lineage, point_shape, steady
from tests.observe.runs import USAGE, Broken, Guard
from tests.sample_tools import add, direct, fail
from tests.waiting import patiently
from traced_tools.advisors.retry_tool import RetryToolAdvisor
from traced_tools.advisors.structured_output import StructuredOutputAdvisor
from traced_tools.audit.advisor import AuditAdvisor
from traced_tools.client import ChatClient, ChatClientRequestSpec
from traced_tools.core.limits import LoopLimits
from traced_tools.core.messages import ToolCall
from traced_tools.core.tool_errors import ToolErrors
from traced_tools.loop.advisor import Advisor
from traced_tools.loop.exchange import ChatClientResponse
from traced_tools.memory.advisor import MemoryAdvisor
from traced_tools.memory.in_memory import InMemoryChatMemoryRepository
from traced_tools.memory.window import MessageWindowChatMemory
from traced_tools.observe import ToolEvent
from traced_tools.policy.advisor import PolicyAdvisor
from traced_tools.policy.policy import Policy
from traced_tools.policy.rule import Rule
from traced_tools.search.advisor import ToolSearchToolCallingAdvisor
from traced_tools.search.keyword import KeywordToolIndex
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools.decorator import tool

CALLS: dict[str, tuple[str, Any]] = {
    "ran": ("add", {"a": 1, "b": 2}),
    "negative": ("add", {"a": -1, "b": 2}),
    "awaited": ("shout", {"text": "hi"}),
    "failed": ("fail", {"reason": "no"}),
    "answered": ("direct", {"text": "x"}),
    "unapproved": ("pay", {"amount": 3}),
    "unknown": ("invented", {}),
    "invalid": ("add", {"a": "one"}),
    "no JSON": ("add", "{"),
}
CALLS["search"] = ("search_tools", {"query": "pay add"})
ANSWERS = ("Fine.", "Two words.", '{"number": 7}', '{"number": ')
MORE = ["Fine."] * 9
"""What the model answers if a run goes on after the last turn."""
ADVISORS = ("guard", "policy", "evaluated policy", "retries", "audit", "search", "output")


@dataclass(frozen=True)
class Number:
    """What an answer may have to be."""

    number: int


@dataclass(frozen=True)
class Conversation:
    """What happens in a conversation.

    Attributes:
        turns: what the model does: requests calls, answers, or fails.
        advisors: names of advisors of the client.
        broken: the hook in which an advisor raises, and the order of the advisor.
        memory: the order of the memory.
        limits: the limits of each run.
        errors: which errors of tools end a run.
    """

    turns: tuple[Any, ...]
    advisors: frozenset[str]
    broken: tuple[str, int] | None
    memory: int | None
    limits: LoopLimits
    errors: ToolErrors


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    """Draw a conversation. Runs fail only where each way agrees on what has happened until then.

    A failed stream leaves what was shown in the memory, and a call that fails the run ends others at any place.
    """
    memory = draw(st.sampled_from([None, None, OUTSIDE, INSIDE]))
    fails = memory is None and draw(st.booleans())
    calls = st.lists(st.sampled_from(["flaky", *CALLS]), min_size=1, max_size=1 if fails else 4).map(tuple)
    turn = st.one_of(calls, st.sampled_from([*ANSWERS, "error"] if fails else ANSWERS))
    broken = [None, None, ("advise", 450), ("advise_tool", 150), ("advise_tool", 450)] if fails else [None]
    raising = [ToolErrors(always_raise=True), ToolErrors(unknown_tool="raise")] if fails else []
    return Conversation(
        tuple(draw(st.lists(turn, min_size=1, max_size=6))),
        draw(st.frozensets(st.sampled_from(ADVISORS if memory is None else ADVISORS[:-1]), max_size=4)),
        draw(st.sampled_from(broken)),
        memory,
        LoopLimits(
            max_iterations=draw(st.none() | st.integers(1, 3)),
            max_tool_calls=draw(st.none() | st.integers(1, 6)),
            max_calls_per_tool=draw(st.none() | st.integers(1, 3)),
            max_repeated_calls=draw(st.none() | st.integers(1, 2)),
            max_tokens=draw(st.none() | st.integers(10, 60)),
            on_limit=draw(st.sampled_from(["conclude", "stop", "raise"] if fails else ["conclude", "stop"])),
        ),
        draw(st.sampled_from([ToolErrors(), *raising])),
    )


def stepping(spec: ChatClientRequestSpec) -> ChatClientResponse:
    with spec.start() as steps:
        while step := steps.next():
            steps.perform(step)
    return steps.response


def stepping_on_asyncio(spec: ChatClientRequestSpec) -> ChatClientResponse:
    async def steps_to_the_end() -> ChatClientResponse:
        async with spec.start() as steps:
            while step := steps.next():
                await steps.aperform(step)
        return steps.response

    return asyncio.run(patiently(steps_to_the_end()))


def beside_a_loop(spec: ChatClientRequestSpec) -> ChatClientResponse:
    async def calls() -> ChatClientResponse:
        return spec.call()

    return asyncio.run(calls())


def in_mode(mode: str) -> Callable[[ChatClientRequestSpec], ChatClientResponse]:
    return lambda spec: run(mode, spec)


WAYS = {
    **{mode: in_mode(mode) for mode in ALL_MODES},
    "steps": stepping,
    "steps on asyncio": stepping_on_asyncio,
    "beside a loop": beside_a_loop,
}


def parts_of(response: ChatClientResponse) -> dict[str, Any]:
    return {
        "answer": response.message,
        "stop reason": response.stop_reason,
        "results": [(str(result), result.content) for result in response.tool_results],
        "pending": [pending.call_id for pending in response.pending],
        "output": response.validated,
        "usage": response.usage,
        "iteration": response.iteration,
    }


class World:
    """A client with what a conversation needs, and everything that its runs do.

    Attributes:
        attempts: how often each call ran the flaky tool.
    """

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self.telemetry = Telemetry()
        self.trail = KeptTrail()
        self.watching = Watching(420)
        self.attempts: Counter[str] = Counter()
        turns = map(self._turn, itertools.count(), [*conversation.turns, *MORE])
        self.model = ScriptedChatModel(turns, usage=USAGE)

    def _turn(self, number: int, turn: Any) -> Any:
        if turn == "error":
            return ConnectionError("down")
        if isinstance(turn, str):
            return turn
        ids = [f"c{number}.{place}" for place in range(len(turn))]
        calls = [
            CALLS[kind] if kind != "flaky" else (kind, {"call": call_id})
            for kind, call_id in zip(turn, ids, strict=True)
        ]
        return [ToolCall(*call, id=call_id) for call, call_id in zip(calls, ids, strict=True)]

    def client(self) -> ChatClient:
        def flaky(call: str) -> str:
            """Fail the first time."""
            self.attempts[call] += 1
            if self.attempts[call] == 1:
                raise ConnectionError("again")
            return "done"

        async def shout(text: str) -> str:
            """Shout."""
            await asyncio.sleep(0)
            return text.upper()

        @tool(requires_approval=True)
        def pay(amount: int) -> str:
            """Never run."""
            return ""

        return ChatClient(
            self.model,
            name="desk",
            tools=[add, direct, fail, flaky, pay, shout],
            advisors=[self.watching, *self._advisors()],
            limits=self.conversation.limits,
            tool_errors=self.conversation.errors,
            telemetry=self.telemetry.options,
        )

    def _advisors(self) -> list[Advisor]:
        negative = Rule("negative", then="deny", tool="add", where=lambda arguments: arguments["a"] < 0)
        advisors: dict[str, Callable[[], Advisor]] = {
            "guard": Guard,
            "policy": lambda: PolicyAdvisor(Policy([negative], default="allow")),
            "evaluated policy": lambda: PolicyAdvisor(
                Policy([negative], default="allow"), evaluate_only=True, name="evaluated"
            ),
            "retries": RetryToolAdvisor,
            "audit": lambda: AuditAdvisor(self.trail),
            "output": lambda: StructuredOutputAdvisor(Number, max_attempts=2),
            "search": lambda: ToolSearchToolCallingAdvisor(KeywordToolIndex()),
        }
        chosen = [advisors[name]() for name in ADVISORS if name in self.conversation.advisors]
        if self.conversation.broken is not None:
            chosen.append(Broken(*self.conversation.broken))
        if self.conversation.memory is not None:
            memory = MessageWindowChatMemory(InMemoryChatMemoryRepository(), 20)
            chosen.append(MemoryAdvisor(memory, order=self.conversation.memory))
        return chosen

    def _events(self) -> dict[str, list[str]]:
        """Return the types of events in order, those of each call apart: calls of an answer run at once."""
        types = defaultdict(list)
        for event in self.watching.events:
            types[event.call_id if isinstance(event, ToolEvent) else ""].append(event.type)
        return types

    def _records(self) -> dict[str, list[Any]]:
        """Return the audit records in order, those of each call apart, without their durations."""
        records = defaultdict(list)
        for draft in self.trail.drafts:
            fields = {name: value for name, value in draft.fields.items() if name != "duration"}
            records[str(draft.subject and draft.subject.call_id)].append((draft.kind, fields))
        return records

    def play(self, way: Callable[[ChatClientRequestSpec], ChatClientResponse]) -> dict[str, Any]:
        """Ask until the model has no more turns; return all that can be seen of it."""
        client, outcomes = self.client(), list[Any]()
        while len(self.model.requests) < len(self.conversation.turns):
            number = len(outcomes)
            try:
                response = way(client.prompt(f"Question {number}?", conversation_id="c"))
            except Exception as error:
                outcomes.append((type(error), str(error)))
            else:
                outcomes.append(parts_of(response))
            if number == len(self.conversation.turns):
                break  # runs end before they reach the model
        requests = [(request.messages, request.tools, request.options) for request in self.model.requests]
        return {"outcomes": outcomes, "requests": requests, **self.seen()}

    def seen(self) -> dict[str, Any]:
        """Return all that the runs have emitted and recorded, and how often the flaky tool ran."""
        assert_consistent(self.telemetry)
        return {
            "attempts": self.attempts,
            "events": self._events(),
            "records": self._records(),
            "spans": lineage(self.telemetry),
            "log-based events": emitted_events(self.telemetry),
            "metrics": [point_shape(point) for point in steady(self.telemetry)],
        }


@given(conversation=conversations())
def test_a_conversation_is_the_same_in_each_way(conversation: Conversation) -> None:
    first, *others = WAYS.values()
    expected = World(conversation).play(first)
    for way in others:
        assert World(conversation).play(way) == expected
