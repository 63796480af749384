"""Whatever happens in the runs of a conversation, each model is sent a conversation that a strict provider accepts."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.memory.conversations import INSIDE, OUTSIDE, assert_well_formed
from traced_tools import (
    Approve,
    AssistantMessage,
    ChatClient,
    ChatClientRequestSpec,
    ChatClientResponse,
    LoopLimits,
    MemoryAdvisor,
    Reject,
    ToolCall,
    ToolContext,
    Usage,
    UserMessage,
    tool,
)
from traced_tools.core import ToolErrors
from traced_tools.errors import ChatMemoryUnavailable, ResumeError
from traced_tools.memory import (
    ChatMemory,
    CompactingChatMemory,
    CompactionStrategy,
    CompactionTrigger,
    Conversation,
    CutToolResults,
    InMemoryChatMemoryRepository,
    KeepTurns,
    MessageEntry,
    MessageWindowChatMemory,
    Summarize,
    Tokens,
    Turns,
)
from traced_tools.models import ChatRequest
from traced_tools.testing import ScriptedChatModel

Fate = Literal["ok", "fail", "interrupt", "other run", "inner agent", "direct", "wait"]
Decided = Literal["approve", "reject", "half", "late", "never"]


@dataclass(frozen=True)
class Round:
    """An answer of the model: the fates of its calls; without calls, its text."""

    fates: tuple[Fate, ...] = ()
    text: str = "Sure."
    fails: bool = False


@dataclass(frozen=True)
class Plan:
    """A run: what its model answers, and what happens to it."""

    rounds: tuple[Round, ...]
    order: int = INSIDE
    mode: Literal["call", "stream", "steps", "dead"] = "call"
    chunks: int = 0
    decided: Decided = "approve"
    raises: bool = False
    most: int | None = None
    down_at: int | None = None
    others: tuple[Plan, ...] = ()
    inner: Plan | None = None


fates = st.sampled_from([*["ok", "wait"] * 3, "fail", "interrupt", "other run", "inner agent", "direct"])
decisions = st.sampled_from(["approve", "reject", "half", "late", "never"])
rounds = st.builds(
    Round,
    fates=st.lists(fates, max_size=3).map(tuple),
    text=st.sampled_from(["", " ", "Sure.", "Let me see, please wait."]),
    fails=st.sampled_from([False, False, False, True]),
)
leaves = st.builds(
    Plan,
    rounds=st.lists(rounds, max_size=3).map(tuple),
    order=st.sampled_from([OUTSIDE, INSIDE]),
    mode=st.sampled_from(["call", "stream"]),
    decided=decisions,
)
plans = st.builds(
    Plan,
    rounds=st.lists(rounds, max_size=4).map(tuple),
    order=st.sampled_from([OUTSIDE, INSIDE]),
    mode=st.sampled_from([*["call"] * 3, "stream", "steps", "dead"]),
    chunks=st.integers(0, 6),
    decided=decisions,
    raises=st.booleans(),
    most=st.sampled_from([None, None, 1, 2]),
    down_at=st.one_of(st.none(), st.none(), st.integers(1, 12)),
    others=st.lists(leaves, max_size=2).map(tuple),
    inner=st.one_of(st.none(), leaves),
)


class _Store(InMemoryChatMemoryRepository):
    """A store that can be down for one commit."""

    down_at: int | None = None

    def commit(self, before: Conversation | None, after: Conversation, entries: Any) -> bool:
        if self.down_at is not None:
            self.down_at -= 1
            if self.down_at == 0:
                raise ChatMemoryUnavailable("the store is down")
        return super().commit(before, after, entries)


@dataclass
class Bench:
    """Runs plans in one conversation, and checks what each model is sent."""

    memory_of: Callable[[_Store], ChatMemory]
    store: _Store = field(default_factory=_Store)
    questions: int = 0
    problems: list[AssertionError] = field(default_factory=list)
    waiting: list[tuple[ChatClient, Sequence[Any], ChatClientResponse]] = field(default_factory=list)

    def run(self, plan: Plan, **identity: Any) -> None:
        self.questions += 1
        number, text = self.questions, f"Question {self.questions}?"
        if plan.mode == "dead":
            self.die(text)
            return
        advisor = MemoryAdvisor(self.memory_of(self.store), order=plan.order, on_failure="warn")
        model = ScriptedChatModel(
            [*map(self.answer, plan.rounds), *[self.answer(Round())] * 4], usage=Usage(input_tokens=50, output_tokens=5)
        )
        limits = LoopLimits(max_iterations=plan.most) if plan.most else None
        client = ChatClient(model, advisors=[advisor], limits=limits, **identity)
        self.store.down_at = plan.down_at
        tools = self.tools(plan)
        spec = client.prompt(text, conversation_id="c", tools=tools, tool_errors=ToolErrors(always_raise=plan.raises))
        with suppress(Exception, KeyboardInterrupt):
            if plan.mode == "call":
                response = spec.call()
                if plan.decided == "late":
                    self.waiting.append((client, tools, response))
                else:
                    self.decide_at_once(number, plan.decided, client, tools, response)
            elif plan.mode == "steps":
                self.cancel_at(spec, plan.chunks)
            else:
                self.read_some(spec, plan.chunks)
        self.store.down_at = None

    def decide_at_once(self, number: int, *given: Any) -> None:
        """Resume the run of a question, if it waits; note that it is refused, unless other runs went by."""
        try:
            self.decide(*given)
        except ResumeError as refused:
            if self.questions == number:
                self.problems.append(AssertionError(f"a run that waits is refused: {refused}"))

    def decide(self, decided: Decided, client: ChatClient, tools: Sequence[Any], response: ChatClientResponse) -> None:
        """Resume a run, if it waits, until none of its calls does."""
        decision = Reject("no") if decided == "reject" else Approve()
        while response.state is not None and decided != "never":
            ids = [each.call_id for each in response.pending]
            taken = dict.fromkeys(ids[:1] if decided == "half" else ids, decision)
            response = client.resume(response.state, taken, tools=tools).call()

    def decide_late(self) -> None:
        """Resume the runs that wait, although the conversation may have gone on."""
        for client, tools, response in self.waiting:
            with suppress(Exception, KeyboardInterrupt):
                self.decide("approve", client, tools, response)
        self.waiting.clear()

    def cancel_at(self, spec: ChatClientRequestSpec[Any], steps: int) -> None:
        """Perform some steps of a run, and cancel it."""
        with spec.start() as driven:
            for index in itertools.count():
                if index == steps:
                    driven.cancel()
                if (step := driven.next()) is None:
                    return
                driven.perform(step)

    def read_some(self, spec: ChatClientRequestSpec[Any], chunks: int) -> None:
        """Read a part of a stream, and leave it."""
        with spec.stream() as stream:
            for index, _ in enumerate(stream):
                if index == chunks:
                    break

    def answer(self, planned: Round) -> Callable[[ChatRequest], Any]:
        def check_and_answer(request: ChatRequest) -> Any:
            self.check(request)
            if planned.fails:
                raise RuntimeError("down")
            calls = [
                {"direct": ToolCall("recite"), "wait": ToolCall("pay")}.get(fate, ToolCall("act", {"fate": fate}))
                for fate in planned.fates
            ]
            return [planned.text, *calls]

        return check_and_answer

    def check(self, request: ChatRequest) -> None:
        """Note what is wrong, because a run that fails hides it."""
        try:
            assert_well_formed(request.messages)
        except AssertionError as problem:
            self.problems.append(problem)

    def tools(self, plan: Plan) -> Sequence[Any]:
        others = iter(plan.others)

        @tool
        def act(fate: str, context: ToolContext) -> str:
            """Act."""
            if fate == "fail":
                raise ValueError("broken")
            if fate == "interrupt":
                raise KeyboardInterrupt
            if fate == "other run" and (other := next(others, None)) is not None:
                thread = threading.Thread(target=self.run, args=(other,))
                thread.start()
                thread.join()
            if fate == "inner agent" and plan.inner is not None:
                self.run(plan.inner, name="inner")
            return "done" * 10

        @tool(return_direct=True)
        def recite() -> str:
            """Recite."""
            return "Roses are red."

        @tool(requires_approval=True)
        def pay() -> str:
            """Pay."""
            return "paid"

        return [act, recite, pay]

    def die(self, text: str) -> None:
        """Append what a process leaves that is killed while its tools run."""
        calls = AssistantMessage(tool_calls=[ToolCall("act", id=f"dead {self.questions}")])
        log = self.store.read("c")
        turn = max((entry.turn for entry in log.entries), default=0) + 1
        dead = [MessageEntry(each, turn=turn, run_id=text) for each in (UserMessage(text), calls)]
        self.store.append("c", dead, log.version)


def check(planned: Iterable[Plan], memory_of: Callable[[_Store], ChatMemory]) -> None:
    bench = Bench(memory_of)
    with suppress(KeyboardInterrupt):
        for plan in planned:
            bench.run(plan)
            if plan.decided != "late":
                bench.decide_late()
    bench.run(Plan((Round(),)))
    bench.run(Plan((Round(),), order=OUTSIDE))
    for problem in bench.problems:
        raise problem
    entries = bench.store.read("c").entries
    assert len({entry.id for entry in entries}) == len(entries)


@given(st.lists(plans, max_size=6), st.integers(1, 12))
@settings(deadline=None)
def test_every_conversation_that_a_window_sends_is_well_formed(planned: list[Plan], size: int) -> None:
    check(planned, lambda store: MessageWindowChatMemory(store, max_messages=size))


def summarizer() -> ScriptedChatModel:
    """Return a model that summarizes, and sometimes fails or says nothing."""
    return ScriptedChatModel(["They talked.", RuntimeError("down"), " ", *["They talked."] * 100])


triggers = st.one_of(st.builds(Turns, st.integers(1, 4)), st.builds(Tokens, st.integers(1, 200)))
strategies = st.lists(
    st.one_of(
        st.builds(KeepTurns, st.integers(1, 3)),
        st.builds(CutToolResults, max_chars=st.integers(1, 50), spare=st.sampled_from([(), "l*"])),
        st.builds(lambda turns: Summarize(summarizer(), keep_turns=turns), st.integers(1, 3)),
    ),
    min_size=1,
    max_size=3,
)


@given(st.lists(plans, max_size=6), triggers, strategies)
@settings(deadline=None)
def test_every_conversation_that_is_compacted_is_well_formed(
    planned: list[Plan], trigger: CompactionTrigger, how: list[CompactionStrategy]
) -> None:
    check(planned, lambda store: CompactingChatMemory(store, when=trigger, how=how))
