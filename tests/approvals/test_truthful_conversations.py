"""Whatever workers do with one conversation, no model reads that a call was not run which has run or will run."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.audit.draft_trails import KeptTrail
from tests.memory.conversations import INSIDE, OUTSIDE, assert_well_formed
from traced_tools import (
    Approve,
    AuditAdvisor,
    ChatClient,
    ChatClientResponse,
    MemoryAdvisor,
    Reject,
    ToolCall,
    ToolMessage,
    tool,
)
from traced_tools.approvals import PendingStore
from traced_tools.errors import ResumeError
from traced_tools.loop.state import RunState
from traced_tools.memory import InMemoryChatMemoryRepository, MessageWindowChatMemory, log_reader
from traced_tools.run_handles import ChatRun
from traced_tools.testing import ScriptedChatModel

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("processes")]
STEPS = st.integers(1, 9)
"""A resumed run has about 9 steps: what it reads and writes, its tool, and its model."""
RARELY = st.integers(0, 3).map(lambda number: number == 3)
WORKER, RUN = st.integers(0, 1), st.integers(0, 2)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from(["call", "call", "answer", "failure"]), st.booleans(), RARELY),
        st.tuples(st.just("resume"), RUN, st.sampled_from(["approve", "approve", "reject", "nothing"]), RARELY, STEPS),
        st.tuples(st.just("step"), WORKER, STEPS),
        st.tuples(st.just("kill"), WORKER),
        st.tuples(st.just("withdraw"), RUN),
        st.tuples(st.just("delete")),
        st.tuples(st.just("put")),
    ),
    min_size=10,
    max_size=30,
)


class World:
    """Workers that share a conversation, and what has happened to each call.

    Attributes:
        ran: the ids of the calls that have run, once for each time.
        denied: the ids of the calls of which a model has read that they were not run.
    """

    def __init__(self, store: PendingStore | None, order: int) -> None:
        self._store, self._order = store, order
        self._memory = MemoryAdvisor(MessageWindowChatMemory(InMemoryChatMemoryRepository(), 50), order=order)
        self.trail = KeptTrail()
        self.ran: list[str] = []
        self.denied: set[str] = set()
        self._rejected: set[str] = set()
        self._asked = 0
        self._states: list[tuple[str, str, str]] = []  # each with the id of the run and of its call
        self._workers: list[ChatRun[Any] | None] = [None] * 2
        self._models: dict[int, ScriptedChatModel] = {}
        self._dead: list[ChatRun[Any] | None] = []

    def play(self, operation: tuple[Any, ...]) -> None:
        getattr(self, f"_{operation[0]}")(*operation[1:])

    def finish(self) -> None:
        for worker in range(2):
            self._step(worker, 1_000)
        self._ask("answer", True, False)

    def decided(self) -> list[tuple[str | None, str | None]]:
        """Return the calls with the reason codes of the decisions about them in the trail, except that they wait."""
        return [
            (each.subject.call_id, each.fields.get("reason_code"))
            for each in self.trail.drafts
            if each.subject is not None and each.kind == "decision" and each.fields["decision"] != "pending"
        ]

    def _ask(self, answer: str, is_new: bool, lacks_store: bool) -> None:
        """Say something, new or again, in a run that ends at once: the model asks to pay, answers, or fails."""
        self._asked += is_new or not self._asked
        call = ToolCall("pay", {"number": len(self._states)}, id=f"p{len(self._states)}")
        model = ScriptedChatModel([{"call": [call], "answer": "fine", "failure": _fails}[answer]])
        try:
            client = self._client(model, lacks_store=lacks_store and self._order == INSIDE)
            response = client.prompt(f"Question {self._asked}.", conversation_id="c").call()
        except ConnectionError:
            return
        self._keep(response)
        self._read(model)

    def _keep(self, response: ChatClientResponse) -> None:
        for each in response.pending:
            self._states.append((response.state or "", response.run_id, each.call_id))

    def _resume(self, run: int, decision: str, lacks_memory: bool, steps: int) -> None:
        """Begin to resume a run in a worker that is free, and take some steps."""
        if not self._states or None not in self._workers:
            return
        state, _, call_id = self._states[-1 - run % len(self._states)]
        choices: dict[str, dict[str, Approve | Reject]] = {
            "approve": {call_id: Approve()},
            "reject": {call_id: Reject("no")},
            "nothing": {},
        }
        model = ScriptedChatModel(["done"])
        worker = self._workers.index(None)
        try:
            spec = self._client(model, lacks_memory=lacks_memory).resume(state, choices[decision])
        except ResumeError:
            return
        if decision == "reject":
            self._rejected.add(call_id)
        self._workers[worker], self._models[worker] = spec.start(), model
        self._step(worker, steps)

    def _step(self, worker: int, steps: int) -> None:
        going = self._workers[worker]
        for _ in range(steps if going is not None else 0):
            assert going is not None
            try:
                step = going.next()
                if step is not None:
                    going.perform(step)
                    continue
                self._keep(going.response)
            except ResumeError:
                pass
            self._read(self._models[worker])
            self._workers[worker] = None
            return

    def _kill(self, worker: int) -> None:
        """Let nothing of a run happen any more, as the death of its process does."""
        self._dead.append(self._workers[worker])  # otherwise, it would clean up
        self._workers[worker] = None

    def _withdraw(self, run: int) -> None:
        if self._store is not None and self._states:
            self._store.withdraw(self._states[-1 - run % len(self._states)][1])

    def _delete(self) -> None:
        if self._store is not None:
            self._store.delete_spent()

    def _put(self) -> None:
        for state, *_ in self._states:
            if self._store is not None and RunState.unverified(state).is_kept:
                self._store.put(state)

    def _client(self, model: ScriptedChatModel, *, lacks_store: bool = False, lacks_memory: bool = False) -> ChatClient:
        @tool(requires_approval=True)
        def pay(number: int) -> str:
            """Pay."""
            self.ran.append(f"p{number}")
            return f"paid {number}"

        advisors = [AuditAdvisor(self.trail)] if lacks_memory else [self._memory, AuditAdvisor(self.trail)]
        store = None if lacks_store else self._store
        return ChatClient(model, name="desk", tools=[pay], advisors=advisors, pending_store=store)

    def _read(self, model: ScriptedChatModel) -> None:
        for request in model.requests:
            assert_well_formed(request.messages)
            for message in request.messages:
                for part in message.results if isinstance(message, ToolMessage) else ():
                    if part.content.startswith("The call was not run: ") and part.call_id not in self._rejected:
                        self.denied.add(part.call_id)


def _fails(request: object) -> str:
    raise ConnectionError("down")


@contextmanager
def opened(keeper: str) -> Iterator[PendingStore | None]:
    if keeper == "log":
        yield None
        return
    with TemporaryDirectory() as folder, PendingStore(Path(folder) / "pending.db") as store:
        yield store


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make runs of this process look like runs of other processes: nobody knows whether they have ended."""
    monkeypatch.setattr(log_reader, "is_active", lambda entry: False)


def play(keeper: str, order: int, operations: Iterable[tuple[Any, ...]]) -> None:
    with opened(keeper) as store:
        world = World(store, order)
        for operation in operations:
            world.play(operation)
        world.finish()
        assert world.denied.isdisjoint(world.ran)
        decided = world.decided()
        assert {call_id for call_id, code in decided if code == "superseded"}.isdisjoint(world.ran)
        if order == INSIDE:  # outside the loop, only a store knows which run resumes
            assert len(world.ran) == len(set(world.ran))
            assert len(decided) == len({call_id for call_id, _ in decided})


MEANWHILE: list[list[tuple[Any, ...]]] = [
    [("ask", "answer", True, False)],
    [("ask", "answer", True, True)],
    [("ask", "call", False, False)],
    [("ask", "call", True, False), ("resume", 0, "approve", False, 9)],
    [("resume", 0, "approve", False, 9)],
    [("resume", 0, "reject", False, 9)],
    [("resume", 0, "approve", True, 9)],
    [("resume", 0, "nothing", False, 9), ("resume", 0, "approve", False, 9)],
    [("withdraw", 0)],
    [("delete",), ("put",), ("resume", 0, "approve", False, 9)],
]
"""What other workers do while one resumes a run."""


@pytest.mark.parametrize("order", [INSIDE, OUTSIDE])
@pytest.mark.parametrize("keeper", ["store", "log"])
def test_whenever_a_resumed_run_stops_no_model_reads_that_a_call_was_not_run_which_runs(
    keeper: str, order: int
) -> None:
    for steps, meanwhile, is_killed in itertools.product(range(1, 9), MEANWHILE, [True, False]):
        begin = [("ask", "call", True, False), ("resume", 0, "approve", False, steps)]
        play(keeper, order, [*begin, *meanwhile, *([("kill", 0)] if is_killed else []), ("ask", "answer", True, False)])


@pytest.mark.parametrize("order", [INSIDE, OUTSIDE])
@pytest.mark.parametrize("keeper", ["store", "log"])
def test_whenever_a_resumed_run_stops_twice_no_model_reads_that_a_call_was_not_run_which_runs(
    keeper: str, order: int
) -> None:
    begin, answer = ("ask", "call", True, False), ("ask", "answer", True, False)
    for first, second, meanwhile in itertools.product(range(1, 9), range(1, 9), [answer, begin]):
        resume = ("resume", 0, "approve", False, first)
        play(keeper, order, [begin, resume, meanwhile, ("step", 0, second), answer])


@pytest.mark.parametrize("order", [INSIDE, OUTSIDE])
@pytest.mark.parametrize("keeper", ["store", "log"])
@given(operations=OPERATIONS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_model_reads_that_a_call_was_not_run_which_runs(keeper: str, order: int, operations: list[Any]) -> None:
    play(keeper, order, operations)
