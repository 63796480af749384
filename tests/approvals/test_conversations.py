"""What the next run of a conversation says of a call that waited, and which run may resume: what is kept decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Thread
from typing import Any

import pytest

from tests.audit.draft_trails import KeptTrail
from tests.captured import Telemetry
from tests.memory.conversations import INSIDE, OUTSIDE, assert_well_formed
from tests.modes import ALL_MODES, MODES, run
from tests.sweeps import sweep
from traced_tools import (
    ApprovalAdvisor,
    Approve,
    AssistantMessage,
    AuditAdvisor,
    ChatClient,
    ChatClientResponse,
    MemoryAdvisor,
    Message,
    ToolCall,
    ToolMessage,
    UserMessage,
    tool,
)
from traced_tools.approvals import PendingStore
from traced_tools.core import InputRequest, PendingInput, ToolCallback
from traced_tools.errors import ChatMemoryUnavailable, InputRequired, PendingStoreUnavailable, ResumeError
from traced_tools.flow.flow import call
from traced_tools.loop.state import RunState
from traced_tools.memory import InMemoryChatMemoryRepository, MessageWindowChatMemory, log_reader
from traced_tools.memory.conversation import Conversation, EntrySelection, StoredEntry
from traced_tools.memory.entries import MemoryEntry
from traced_tools.memory.log_reader import LogReader
from traced_tools.memory.view import MemoryView
from traced_tools.observe import names
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import tool_callbacks

PAID: list[int] = []
WHILE_PAYING: list[Callable[[], object]] = []
KEEPERS = ("store", "log")
NOT_RUN, UNKNOWN = "The call was not run: ", "The outcome of the call is unknown, and it may have run: "


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    PAID.append(amount)
    while WHILE_PAYING:
        elsewhere(WHILE_PAYING.pop())
    return f"paid {amount}"


@pytest.fixture(autouse=True)
def _nothing_paid() -> None:
    PAID.clear()
    WHILE_PAYING.clear()


def pays(amount: int = 5, id: str = "p") -> ToolCall:
    return ToolCall("pay", {"amount": amount}, id=id)


def elsewhere(function: Callable[[], object]) -> None:
    """Call a function outside the context of the run that calls it, as another worker does."""
    thread = Thread(target=function)
    thread.start()
    thread.join()


class Desk:
    """Clients that share a memory, a trail and, if `keeper` is `store`, a store; each as if in its own process."""

    def __init__(self, store: PendingStore, keeper: str, *, order: int = INSIDE, **memory: Any) -> None:
        self.repository = InMemoryChatMemoryRepository()
        self.trail, self.telemetry = KeptTrail(), Telemetry()
        self.memory = memory.pop("memory", None) or MessageWindowChatMemory(self.repository)
        self._advisor = MemoryAdvisor(self.memory, order=order, **memory)
        self._store = store if keeper == "store" else None
        self.models: list[ScriptedChatModel] = []

    def client(self, *turns: Any, **settings: Any) -> ChatClient:
        self.models.append(ScriptedChatModel([*turns]))
        advisors = [self._advisor, AuditAdvisor(self.trail)]
        settings = {"tools": [pay], "advisors": advisors, "pending_store": self._store, **settings}
        return ChatClient(self.models[-1], name="desk", telemetry=self.telemetry.options, **settings)

    def asks(self, mode: str, question: str, *turns: Any, **settings: Any) -> ChatClientResponse:
        return run(mode, self.client(*turns, **settings).prompt(question, conversation_id="c"))

    def resumes(self, mode: str, response: ChatClientResponse, *turns: Any, **settings: Any) -> ChatClientResponse:
        decisions = {each.call_id: Approve(by="ana") for each in response.pending}
        return run(mode, self.client(*turns, **settings).resume(response.state or "", decisions))

    def read(self, mode: str = "call", question: str = "and?") -> list[str]:
        """Ask something, and return the results of calls that the model reads."""
        self.asks(mode, question, "fine")
        [request] = self.models[-1].requests
        assert_well_formed(request.messages)
        return results_in(request.messages)

    def decisions(self) -> list[str]:
        return [each.fields["decision"] for each in self.trail.drafts if each.kind == "decision"]

    def refused(self) -> list[object]:
        """Return the reason codes of the calls that runs have refused because the conversation went on."""
        codes = [(span.attributes or {}).get(names.REASON_CODE) for span in self.telemetry.named("refuse_tool pay")]
        return [code for code in codes if code == "superseded"]


def results_in(messages: Sequence[Message]) -> list[str]:
    return [part.content for message in messages if isinstance(message, ToolMessage) for part in message.results]


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make runs of this process look like runs of other processes: nobody knows whether they have ended."""
    monkeypatch.setattr(log_reader, "is_active", lambda entry: False)


# A run has resumed.


@pytest.mark.usefixtures("processes")
@sweep(mode=ALL_MODES, keeper=KEEPERS)
def test_while_a_resumed_run_pays_another_worker_says_that_the_call_may_have_run(
    store: PendingStore, mode: str, keeper: str
) -> None:
    desk = Desk(store, keeper)
    waiting = desk.asks(mode, "pay", [pays()])
    seen: list[str] = []
    WHILE_PAYING.append(lambda: seen.extend(desk.read()))
    desk.resumes(mode, waiting, "done")
    assert [each.startswith(UNKNOWN) for each in seen] == [True]
    assert desk.read(mode) == ["paid 5"]
    assert (desk.decisions(), desk.refused()) == (["pending", "approved"], [])


@pytest.mark.usefixtures("processes")
@sweep(mode=MODES, keeper=KEEPERS)
def test_a_state_is_resumed_once_even_while_the_first_run_pays(store: PendingStore, mode: str, keeper: str) -> None:
    desk = Desk(store, keeper)
    waiting = desk.asks(mode, "pay", [pays()])
    refused: list[str] = []

    def again() -> None:
        with pytest.raises(ResumeError) as error:
            desk.resumes("call", waiting, "again")
        refused.append(str(error.value))

    WHILE_PAYING.append(again)
    desk.resumes(mode, waiting, "done")
    assert (len(refused), PAID) == (1, [5])


@pytest.mark.parametrize("deleted", [False, True])
def test_a_state_that_was_spent_before_its_run_was_lost_leaves_an_unknown_outcome(
    store: PendingStore, mode: str, deleted: bool
) -> None:
    desk = Desk(store, "store")
    waiting = desk.asks(mode, "pay", [pays()])
    call(store.claim(RunState.from_text(waiting.state or ""), {"p": Approve()}))
    if deleted:
        store.delete_spent()
    for _ in range(2):
        [result] = desk.read(mode)
        assert result.startswith(UNKNOWN)
    assert (desk.decisions(), desk.refused()) == (["pending"], [])
    [point] = desk.telemetry.metric(names.MISSING_RESULTS.name)
    assert ((point.attributes or {})[names.MISSING_RESULTS_KIND], point.value) == ("unknown", 1)


def test_a_store_that_cannot_be_asked_leaves_an_unknown_outcome(
    store: PendingStore, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(run_id: str) -> bool:
        raise PendingStoreUnavailable("down")

    desk = Desk(store, "store")
    desk.asks(mode, "pay", [pays()])
    monkeypatch.setattr(store, "withdraw", fails)
    assert [each.startswith(UNKNOWN) for each in desk.read(mode)] == [True]
    assert (desk.decisions(), desk.refused()) == (["pending"], [])


def test_a_client_without_the_store_cannot_say_that_the_call_was_not_run(store: PendingStore, mode: str) -> None:
    desk = Desk(store, "store")
    desk.asks(mode, "pay", [pays()])
    desk.asks(mode, "and?", "fine", pending_store=None)
    assert [each.startswith(UNKNOWN) for each in results_in(desk.models[-1].requests[0].messages)] == [True]
    assert desk.decisions() == ["pending"]


def test_a_call_whose_tool_asked_for_input_is_not_said_to_be_not_run(store: PendingStore, mode: str) -> None:
    @tool(name="pay")
    def ask(amount: int) -> str:
        """Ask."""
        PAID.append(amount)
        question = InputRequest(key="iban", method="elicitation/create", params={"message": "?", "requestedSchema": {}})
        raise InputRequired(PendingInput(requests=(question,)))

    desk = Desk(store, "store")
    waiting = desk.asks(mode, "pay", [pays()], tools=[ask])
    assert (waiting.stop_reason, PAID) == ("awaiting_input", [5])
    for _ in range(2):
        assert [each.startswith(UNKNOWN) for each in desk.read(mode)] == [True]
    assert store.is_withdrawn(waiting.run_id)
    assert "denied" not in desk.decisions()


# The conversation has gone on.


@sweep(mode=MODES, keeper=KEEPERS, place=("inside", "outside"))
def test_a_run_that_the_conversation_passes_by_never_resumes(
    store: PendingStore, mode: str, keeper: str, place: str
) -> None:
    desk = Desk(store, keeper, order=INSIDE if place == "inside" else OUTSIDE)
    waiting = desk.asks(mode, "pay", [pays()])
    for _ in range(2):
        results = desk.read(mode)
        assert [each.startswith(NOT_RUN) for each in results] == ([True] if place == "inside" else [])
    with pytest.raises(ResumeError):
        desk.resumes(mode, waiting, "never")
    denied = ["denied"] if place == "inside" else []
    assert (desk.decisions(), len(desk.refused()), PAID) == (["pending", *denied], len(denied), [])


@pytest.mark.parametrize("deleted", [False, True])
def test_a_run_that_somebody_has_withdrawn_was_not_run(store: PendingStore, mode: str, deleted: bool) -> None:
    desk = Desk(store, "store")
    waiting = desk.asks(mode, "pay", [pays()])
    assert store.withdraw(waiting.run_id)
    if deleted:  # then the store no longer knows why the run does not wait
        store.delete_spent()
    assert [each.startswith(UNKNOWN if deleted else NOT_RUN) for each in desk.read(mode)] == [True]
    assert desk.decisions() == (["pending"] if deleted else ["pending", "denied"])


class Passing:
    """A resolver in whose place another worker goes on with the conversation: the run resumes, but has not begun."""

    def __init__(self) -> None:
        self.meanwhile: list[Callable[[], object]] = []

    def resolve(self, name: str) -> ToolCallback | None:
        while self.meanwhile:
            elsewhere(self.meanwhile.pop())
        return tool_callbacks(pay)[0]


@sweep(mode=MODES, keeper=KEEPERS)
def test_a_run_that_has_not_begun_its_calls_when_the_conversation_goes_on_is_refused(
    store: PendingStore, mode: str, keeper: str
) -> None:
    desk, resolver = Desk(store, keeper), Passing()
    resolving = {"tools": (), "resolver": resolver, "resolver_fallback": True}
    waiting = desk.asks(mode, "pay", [pays()], **resolving)
    seen: list[str] = []
    resolver.meanwhile.append(lambda: seen.extend(desk.read()))
    with pytest.raises(ResumeError):
        desk.resumes(mode, waiting, "never", **resolving)
    assert [each.startswith(NOT_RUN) for each in seen] == [True]
    assert (desk.decisions(), len(desk.refused()), PAID) == (["pending", "denied"], 1, [])


def test_a_run_that_no_store_keeps_resumes_with_its_memory_alone(store: PendingStore, mode: str) -> None:
    desk = Desk(store, "log")
    waiting = desk.asks(mode, "pay", [pays()])
    for advisors in ([], [MemoryAdvisor(desk.memory, order=OUTSIDE)]):
        with pytest.raises(ResumeError, match="resume with the MemoryAdvisor"):
            desk.resumes(mode, waiting, "done", advisors=advisors)
    assert desk.resumes(mode, waiting, "done").content == "done"


class Outage(MessageWindowChatMemory):
    """A memory that can be down."""

    is_down = False

    async def read(self, log: LogReader) -> MemoryView:
        if self.is_down:
            raise ChatMemoryUnavailable("the memory is down")
        return await super().read(log)


def test_a_run_that_only_the_memory_keeps_waits_until_the_memory_is_up(store: PendingStore, mode: str) -> None:
    memory = Outage(InMemoryChatMemoryRepository())
    desk = Desk(store, "log", memory=memory, on_failure="warn")
    waiting = desk.asks(mode, "pay", [pays()])
    memory.is_down = True
    with pytest.raises(ChatMemoryUnavailable):
        desk.resumes(mode, waiting, "done")
    memory.is_down = False
    assert (desk.resumes(mode, waiting, "done").content, PAID) == ("done", [5])


class Overtaken(InMemoryChatMemoryRepository):
    """A repository that is down for one read, once another worker has appended before a run claims its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.overtake: Callable[[], object] | None = None
        self._reads_before_outage = -1

    def commit(self, before: Conversation | None, after: Conversation, entries: Sequence[StoredEntry]) -> bool:
        overtake, self.overtake = self.overtake, None
        if overtake is not None:
            elsewhere(overtake)
            self._reads_before_outage = 2  # for the refusal and for what is new, not for which turn waits
        return super().commit(before, after, entries)

    def fetch_entries(self, conversation: Conversation, selection: EntrySelection) -> Sequence[StoredEntry]:
        self._reads_before_outage -= 1
        if self._reads_before_outage == -1:
            raise ChatMemoryUnavailable("the memory is down")
        return super().fetch_entries(conversation, selection)


@pytest.mark.usefixtures("processes")
def test_a_run_that_the_memory_keeps_ends_if_an_outage_hides_whether_the_conversation_went_on(
    store: PendingStore, mode: str
) -> None:
    repository = Overtaken()
    desk = Desk(store, "log", memory=MessageWindowChatMemory(repository), on_failure="warn")
    waiting = desk.asks(mode, "pay", [pays()])
    repository.overtake = desk.read
    with pytest.raises(ChatMemoryUnavailable):
        desk.resumes(mode, waiting, "done")
    assert PAID == []


def test_a_run_may_go_on_without_its_memory_if_a_store_keeps_it(store: PendingStore, mode: str) -> None:
    memory = Outage(InMemoryChatMemoryRepository())
    desk = Desk(store, "store", memory=memory, on_failure="warn")
    waiting = desk.asks(mode, "pay", [pays()])
    memory.is_down = True
    assert desk.resumes(mode, waiting, "done").content == "done"


# Which run waits.


def fails(request: object) -> str:
    raise ConnectionError("down")


@sweep(mode=MODES, keeper=KEEPERS, place=("inside", "outside"), failures=(1, 2))
def test_a_question_that_is_asked_again_after_a_failure_pauses_and_resumes(
    store: PendingStore, mode: str, keeper: str, place: str, failures: int
) -> None:
    desk = Desk(store, keeper, order=INSIDE if place == "inside" else OUTSIDE)
    for _ in range(failures):
        with pytest.raises(ConnectionError):
            desk.asks(mode, "pay", fails)
    waiting = desk.asks(mode, "pay", [pays()])
    again = desk.resumes(mode, waiting, [pays(6, id="q")])
    assert desk.resumes(mode, again, "done").content == "done"
    desk.asks(mode, "and?", "fine")
    said = [each.text for each in desk.models[-1].requests[0].messages if each.role == "user"]
    assert (said, PAID) == (["pay", "and?"], [5, 6])
    assert store.pending() == []


@sweep(mode=MODES, keeper=KEEPERS, place=("inside", "outside"))
def test_of_a_question_that_is_asked_twice_the_last_run_waits(
    store: PendingStore, mode: str, keeper: str, place: str
) -> None:
    desk = Desk(store, keeper, order=INSIDE if place == "inside" else OUTSIDE)
    first = desk.asks(mode, "pay", [pays(id="p")])
    second = desk.asks(mode, "pay", [pays(id="q")])
    if keeper == "store":
        assert [each.run_id for each in store.pending()] == [second.run_id]
    with pytest.raises(ResumeError):
        desk.resumes(mode, first, "never")
    assert (desk.resumes(mode, second, "done").content, PAID) == ("done", [5])


@sweep(mode=MODES, keeper=KEEPERS, place=("inside", "outside"))
def test_a_turn_that_began_before_the_pause_does_not_end_the_wait(
    store: PendingStore, mode: str, keeper: str, place: str
) -> None:
    @tool
    def look() -> str:
        """Look."""
        elsewhere(lambda: desk.asks("call", "and?", "fine"))
        return "seen"

    desk = Desk(store, keeper, order=INSIDE if place == "inside" else OUTSIDE)
    waiting = desk.asks(mode, "pay", [ToolCall("look", id="l")], [pays()], tools=[pay, look])
    resumed = desk.resumes(mode, waiting, "done", tools=[pay, look])
    assert (resumed.content, PAID) == ("done", [5])
    desk.asks(mode, "so?", "fine")
    assert_well_formed(desk.models[-1].requests[0].messages)


@sweep(mode=MODES, place=("inside", "outside"))
def test_a_question_after_messages_for_one_request_is_asked_once(store: PendingStore, mode: str, place: str) -> None:
    desk = Desk(store, "store", order=INSIDE if place == "inside" else OUTSIDE)
    desk.asks(mode, "hi", "hello")
    examples = [UserMessage("2 and 2?"), AssistantMessage("4")]
    asking = desk.client([pays()]).prompt("pay", messages=examples, conversation_id="c")
    desk.resumes(mode, run(mode, asking), "done")
    [request] = desk.models[-1].requests
    assert [each.text for each in request.messages if each.role == "user"][-1] == "pay"
    desk.asks(mode, "and?", "fine")
    said = [each.text for each in desk.models[-1].requests[0].messages if each.role == "user"]
    assert said == ["hi", "pay", "and?"]


@sweep(mode=MODES, place=("inside", "outside"), keeper=KEEPERS, most=(2, 5, 6))
def test_a_window_has_room_for_the_same_messages_whether_runs_paused_or_not(
    store: PendingStore, mode: str, place: str, keeper: str, most: int
) -> None:
    def last_request(*, pauses: bool) -> Sequence[Message]:
        memory = MessageWindowChatMemory(InMemoryChatMemoryRepository(), max_messages=most)
        desk = Desk(store, keeper, order=INSIDE if place == "inside" else OUTSIDE, memory=memory)
        approving = [ApprovalAdvisor(lambda request: Approve())]
        for question in ("pay", "pay again", "more", "last"):
            answers: list[Any] = [[pays()], "done"] if question.startswith("pay") else ["fine"]
            if pauses and len(answers) > 1:
                desk.resumes(mode, desk.asks(mode, question, *answers[:1]), *answers[1:])
            else:
                asking = desk.client(*answers).prompt(question, conversation_id="c", advisors=approving)
                run(mode, asking)
        return desk.models[-1].requests[-1].messages

    assert last_request(pauses=True) == last_request(pauses=False)


def test_the_log_says_which_run_waits_for_which_calls(store: PendingStore, mode: str) -> None:
    desk = Desk(store, "log")
    waiting = desk.asks(mode, "pay", [pays()])
    entries: Sequence[MemoryEntry] = desk.repository.read("c").entries
    [pause] = [entry for entry in entries if getattr(entry, "pause", None) is not None]
    assert (pause.run_id, entries[-1] is pause) == (waiting.run_id, True)
