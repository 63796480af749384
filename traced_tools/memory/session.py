"""The access of one run to one conversation: the view that its model is sent, and what the run adds to it."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Final, Protocol

from traced_tools.core.approval import PendingCall
from traced_tools.core.conversation import NOT_RUN, UNKNOWN_OUTCOME
from traced_tools.core.messages import AssistantMessage, Message, ToolCall, Usage, UserMessage
from traced_tools.errors import ChatMemoryUnavailable, ResumeError
from traced_tools.memory.conversation import MOST_ID
from traced_tools.memory.entries import CompactionEntry, LoggedPause, MessageEntry, entry_of_run
from traced_tools.memory.log_reader import LogReader, register_run
from traced_tools.memory.reconciliation import (
    begins_with_results,
    begun_results,
    entries_of,
    find_waiting_turn,
    has_content,
    messages_after,
    missing_results,
    rewind,
    split_request,
    turns_with_running,
    unanswered_runs,
    waiting_outcomes,
    waiting_results,
    waiting_runs,
    with_placeholders,
    with_running_turn,
    without_abandoned,
    without_siblings,
)
from traced_tools.memory.repository import ChatMemoryRepository
from traced_tools.memory.run_log import MOST_ATTEMPTS, OnFailure, RunLog
from traced_tools.memory.view import MemoryView, Turn, results_in, turns_of
from traced_tools.observe.observations import observe_missing_results
from traced_tools.run.context import RunContext
from traced_tools.run.resumption import PausedRun

_MOST_OVERLAPPING: Final = 100
"""How many turns may have begun beside that of a run before it paused, so that the run can still be resumed."""
_NOT_CLAIMED: Final = (
    "the memory keeps the run that waits, and cannot be read: resume the run when the memory is up again"
)


class DecidesView(Protocol):
    """Decides what the model of a session is sent; see `ChatMemory`."""

    @property
    def repository(self) -> ChatMemoryRepository:
        """Where the conversations are."""

    async def read(self, log: LogReader) -> MemoryView:
        """Return the view of a conversation; see `ChatMemory.read`."""

    async def fit(self, view: MemoryView, session: MemorySession) -> MemoryView:
        """Return the view to send now; see `ChatMemory.fit`."""


class MemorySession:
    """The access of one run to one conversation. The memory advisor opens it and appends what the run adds.

    A run without a conversation id has a view as well. Its messages are not stored.

    If a tool of an agent asks another agent in the same conversation, the inner agent writes to a branch of its own. It
    sees what the outer agent's model has been sent and has answered so far, and its own branch.

    Args:
        owner: the object that opens the session. The context of the run keeps the session for `session_of(run, owner)`.
        memory: decides what the model is sent.
        run: the run.
        on_failure: how to react if the store is down: `raise` fails the run, `warn` goes on without the store.

    Attributes:
        view: what the model is sent.
        turn: the number of the run's turn.
        branch: the branch that the run appends to.
        ancestors: the branches of the outer agents, each with the version of the log up to which this run sees it.
        enclosing: the session that was current before.
        compact_above: the number of tokens above which the run may compact the view again.
        superseded: the calls that waited for approval when the run began, and that no run can run any more.
        failed_strategies: the `id` of each strategy of compaction that the run does not try again.
    """

    def __init__(self, owner: object, memory: DecidesView, run: RunContext, on_failure: OnFailure = "raise") -> None:
        self.owner: Final = owner
        self.memory: Final = memory
        self.run: Final = run
        self.enclosing: Final = _CURRENT.get()
        outer = self._outer()
        self.branch: Final[str] = "" if outer is None else _branch_below(outer.branch, run.agent)
        self.ancestors: Final[Mapping[str, int]] = (
            {} if outer is None else {**outer.ancestors, outer.branch: outer.version}
        )
        self.view = MemoryView(inherited=() if outer is None else outer.settled_messages())
        self.turn: int = 1 if outer is None else outer.turn
        self.compact_above = -1
        self.superseded: Sequence[ToolCall] = ()
        self.failed_strategies: set[int] = set()
        self._log = RunLog(memory.repository, run, self.branch, on_failure)
        self._streamed: list[str] = []
        self._streamed_iteration = 0
        self._last: Message | None = None
        self._resumed = Turn()  # as it was in the log when the run began
        run.remembered = ()
        _CURRENT.set(self)

    def _outer(self) -> MemorySession | None:
        """Return the session of the run that asks this one in the same conversation, if there is one."""
        session = None if self.run.conversation_id is None else self.enclosing
        while session is not None and (session.run is self.run or not session.is_shared_with(self.run)):
            session = session.enclosing
        return session

    def is_shared_with(self, run: RunContext) -> bool:
        """Return whether a run has the same conversation, on behalf of the same principal."""
        return (self.run.conversation_id, self.run.principal) == (run.conversation_id, run.principal)

    @property
    def iteration(self) -> int:
        """The iteration of the tool loop, from 1; 0 outside the loop."""
        return self._log.iteration

    @iteration.setter
    def iteration(self, iteration: int) -> None:
        self._log.iteration = iteration

    @property
    def version(self) -> int:
        """The version of the log as this run last saw it."""
        return self._log.version

    @property
    def conversation_id(self) -> str:
        """The id of the conversation; empty if there is none."""
        return self._log.conversation_id

    def visible_branches(self) -> Mapping[str, int | None]:
        """Return the branches that the run sees, each with the last position that it sees; None for all positions."""
        return {self.branch: None, **self.ancestors}

    # The view.

    def shown_whole(self) -> frozenset[str]:
        """Return the ids of the entries that the model is sent as they are in the log."""
        return frozenset(entry.id for entry in self.view.entries if entry.id not in self.view.cuts)

    def messages(self) -> tuple[Message, ...]:
        """Return what the model is sent, besides the instructions."""
        self.run.remembered = self.view.history
        return self.view.messages

    def settled_messages(self) -> tuple[Message, ...]:
        """Return what an inner agent sees: the messages up to the last answer whose calls all have results."""
        running = self.view.running
        settled_turn = replace(running, rounds=tuple(round_ for round_ in running.rounds if round_.is_settled()))
        return replace(self.view, running=settled_turn).messages

    async def fit(self) -> None:
        """Let the memory leave messages out of the view, as a flow; called before each call of the model."""
        self._streamed = []
        view = await self.memory.fit(self.view, self)
        if not isinstance(view, MemoryView):
            raise TypeError(f"fit of {type(self.memory).__name__} must return a MemoryView, not {type(view).__name__}")
        if view.running.question != self.view.running.question:
            raise ValueError(f"fit of {type(self.memory).__name__} must keep the question of the running turn")
        self.view = view

    # What the run adds.

    async def begin(self, conversation: Sequence[Message]) -> None:
        """Read the view, and append the new messages of the conversation that the run is asked to send, as a flow.

        Calls of an earlier run without a result get a placeholder. Unless the run resumes another one, runs that wait
        in the turns before it are withdrawn, and their calls get a placeholder that says whether they can have run.

        Args:
            conversation: the messages without the instructions.

        Raises:
            ConversationDenied: if the conversation belongs to another principal.
            ChatMemoryError: if the conversation cannot be read, or, with `on_failure="raise"`, if the store is down.
        """
        register_run(self.run)  # before the append: other runs must not take the question for an ended run's
        # The view, the resumed turn and the append must be of one version of the log. If another run appends meanwhile,
        # everything is read and decided again.
        for _ in range(MOST_ATTEMPTS):
            view = await self._read_view(conversation)
            previous_turns = None if view is None else await self._previous_turns(view)
            if view is None or previous_turns is None:
                continue
            new_messages, prefix, request_only = split_request(view, conversation)
            if view.running.size:  # the run that paused has appended the question
                new_messages = ()
            turns = turns_with_running(view)
            self.turn, self._last = self._turn_number(new_messages, turns), new_messages[-1] if new_messages else None
            question, placeholders = self._new_entries(new_messages), missing_results(turns, new_messages)
            outcomes: list[MessageEntry] = []
            self.superseded = ()
            if not view.running.size:  # the run begins its turn, and leaves those before behind
                withdrawn_ids = await self._withdraw_runs(previous_turns, new_messages)
                outcomes, self.superseded = waiting_outcomes(previous_turns, new_messages, withdrawn_ids)
            # Without turns in the view, the outcomes are of a turn that it leaves out: only the log gets them.
            view = with_placeholders(view, [*placeholders, *(outcomes if view.turns else ())])
            if self._last is None and view.running.rounds:
                self._last = view.running.rounds[-1].answer.message
            self.view = replace(
                view,
                preceding=prefix,
                request_only=request_only,
                running=view.running.extended(question),
            )
            # In one append, so that no other run reads the question without what became of the calls before it.
            is_appended = await self._log.append_first([*placeholders, *outcomes, *question])
            self._place(self._log.take_placed())
            if is_appended:
                break
        else:
            raise self._log.conflict()
        missing = sum(len(results_in(entry)) for entry in (*placeholders, *outcomes))
        if missing:
            not_run = len(self.superseded)
            observe_missing_results(self.run, not_run, missing - not_run, iteration=self.iteration)

    async def _read_view(self, conversation: Sequence[Message]) -> MemoryView | None:
        """Return the view that the run begins with, or goes on with; None if the log has changed meanwhile."""
        view = await self._log.read_view(self.memory.read)
        if self.view.inherited:
            view = replace(view, inherited=self.view.inherited)
        if self.run.resumption is not None and self._log.has_read:
            paused = self.run.resumption.paused
            paused_turn = await self._find_resumed_turn(paused)
            if paused_turn is None:
                return None
            self._resumed = without_abandoned(paused_turn, paused.messages(), conversation)
            view = with_running_turn(view, self._resumed)
        if self.ancestors:
            view = replace(view, turns=without_siblings(view.turns, self.turn, view.running))
        return view

    async def _previous_turns(self, view: MemoryView) -> Sequence[Turn] | None:
        """Return the turns before the run whose calls may wait; None if the log has changed meanwhile."""
        if view.left_out and not view.turns:  # the turn before is longer than a window
            return await self._log.last_turns(1)
        return view.turns

    async def _withdraw_runs(self, turns: Sequence[Turn], new_messages: Sequence[Message]) -> Container[str | None]:
        """Withdraw the runs that wait in `turns`, because the conversation goes on; return those that never resume.

        The store of a run's state decides whether the run has resumed. The log decides about a state without a store: a
        run that resumes from it writes to the log first, which fails once this run has appended its question.
        """
        pauses = waiting_runs(turns)
        withdrawn_ids = {
            run_id
            for run_id, pause in pauses.items()
            if pause is not None
            and pause.keeper == "log"
            and self._log.on_failure == "raise"  # with `warn`, the log may lack the question of this run
        }
        if self.run.withdraw is not None:
            for run_id in dict.fromkeys((*pauses, *unanswered_runs(turns, new_messages))):
                if run_id is not None and await self.run.withdraw(run_id):
                    withdrawn_ids.add(run_id)
        return withdrawn_ids

    async def _find_resumed_turn(self, paused: PausedRun) -> Turn | None:
        """Return the whole turn that the run continues; None if the log has changed meanwhile.

        The view may lack some or all of its entries, as of any turn before the run. The turn is empty if the process of
        the run that it resumes has ended before it appended anything.

        Args:
            paused: the run that the run resumes.

        Raises:
            ResumeError: if a turn has begun since the last of these runs has paused, or a run has continued its turn.
        """
        run_ids, has_begun = paused.run_ids, paused.answer is not None
        turns = await self._log.last_turns(1)
        if turns is None or self._log.is_out:
            return None if turns is None else Turn()
        if self._log.conversation is None:
            if not has_begun:
                return Turn()
            raise ResumeError(
                "the conversation is no longer in the memory, so the run that waits cannot be resumed",
                lasting="conversation_changed",
            )
        find = partial(find_waiting_turn, run_ids=run_ids, is_nested=bool(self.ancestors), is_logged=paused.is_logged)
        turn = find(turns)
        if turn is None:  # later turns may have begun before the run paused
            turns = await self._log.last_turns(_MOST_OVERLAPPING)
            if turns is None or self._log.is_out:
                return None if turns is None else Turn()
            turn = find(turns)
            if turn is None and not has_begun and not any(entry.run_id in run_ids for entry in entries_of(turns)):
                return Turn()
        if turn is None:
            raise ResumeError(
                "the conversation went on while the run waited or was interrupted, or a run has resumed from the "
                "state before: the run cannot be resumed; what ran before is in the audit trail",
                lasting="conversation_changed",
            )
        return turn

    async def claim(self) -> None:
        """Record in the log that the calls that waited begin, if no store keeps the paused run, as a flow.

        Raises:
            ResumeError: if the conversation went on, or another run has resumed from the state.
            ChatMemoryError: if the log cannot record it, whatever `on_failure` is: without the record, another run
                could resume from the same state.
        """
        paused = None if self.run.resumption is None else self.run.resumption.paused
        if paused is None or not paused.is_logged:
            return
        if not self._log.has_read:
            raise ChatMemoryUnavailable(_NOT_CLAIMED)
        results = begun_results(self._resumed)
        if results is None:  # the memory was down when the run paused, so the log does not have the calls
            return
        [entry] = self._new_entries([results])
        turn: Turn | None = self._resumed
        for _ in range(MOST_ATTEMPTS):
            # An outage is raised here, whatever `on_failure` is: only this append decides which run resumes.
            appended = None if turn is None else await self._log.extend([entry.replace(placeholder=True)])
            if appended is not None:
                entries = [entry for entry in appended if isinstance(entry, MessageEntry)]
                self.view = self.view.with_running(self.view.running.extended(entries))
                return
            await self._log.catch_up()
            # It raises if another run has resumed from the state, and returns None if the log has changed once more.
            turn = await self._find_resumed_turn(paused)
            if self._log.is_out:
                raise ChatMemoryUnavailable(_NOT_CLAIMED)
        raise self._log.conflict()

    async def go_on(self, conversation: Sequence[Message], iteration: int) -> None:
        """Append the new messages of a further request of the run, as a flow.

        If an advisor sends a request again, the view goes back to where it was then.

        Args:
            conversation: the messages without the instructions: the whole conversation, or only its new messages.
            iteration: the iteration of the request.
        """
        is_next, self.iteration = iteration > self.iteration, iteration
        running, new_messages = self.view.running, conversation
        if not (is_next and begins_with_results(running, conversation)):
            after_last = messages_after(self._last, conversation)
            running, new_messages = rewind(running, conversation) if after_last is None else (running, after_last)
            self.view = self.view.with_running(running)
        await self.append(new_messages)

    async def finish(self, conversation: Sequence[Message], *, failing: bool = False) -> None:
        """Append the messages that no request to the model has had, such as the results of the last tools, as a flow.

        Args:
            conversation: the messages of the run so far.
            failing: whether the run fails already; a failure of the store is then counted and not raised.
        """
        if failing:
            self._log.on_failure = "warn"
        new_messages = messages_after(self._last, conversation) or ()
        await self.append(new_messages)
        if self.run.pause is not None:
            await self.pause(self.run.pause.result.waiting)
        await self.flush()
        if self.run.interrupted is not None and any(message is self.run.interrupted for message in new_messages):
            contents = [part.content for part in self.run.interrupted.results]
            unknown = sum(content.startswith(UNKNOWN_OUTCOME) for content in contents)
            not_run = sum(content.startswith(NOT_RUN) for content in contents)
            observe_missing_results(self.run, not_run=not_run, unknown=unknown, iteration=self.iteration)

    async def pause(self, pending: Sequence[PendingCall]) -> None:
        """Append that the run ends because calls wait for a decision, as a flow.

        The results of a resumed run replace the placeholders, and so do the outcomes that another run records.
        """
        begun_ids = tuple(call.call_id for call in pending if call.has_begun)
        pause = LoggedPause(keeper="log" if self.run.withdraw is None else "store", begun=begun_ids)
        [entry] = self._new_entries([waiting_results(pending)])
        await self._append_entries([entry.replace(placeholder=True, pause=pause)])

    def stream(self, text: str, iteration: int, *, restarts: bool) -> None:
        """Remember a piece of an answer that is streamed."""
        if restarts or iteration != self._streamed_iteration:
            self._streamed, self._streamed_iteration = [], iteration
        self._streamed.append(text)

    async def finish_streamed(self) -> None:
        """Append the part of an answer that was streamed before an error or the caller ended the run, as a flow."""
        self._log.on_failure = "warn"
        text = "".join(self._streamed)
        if text.strip():
            await self.append([AssistantMessage(text)])
        await self.flush()

    async def append(self, messages: Sequence[Message], usage: Usage | None = None) -> None:
        """Append messages to the log and to the turn of the run, as a flow.

        An empty answer is omitted, because providers refuse such a message.

        Args:
            messages: the messages.
            usage: the usage that the provider reported for the last message; None if it reported none, or if the last
                message is not an answer.
        """
        tokens = None
        if usage is not None and usage.input_tokens is not None:
            tokens = max(0, usage.input_tokens + (usage.output_tokens or 0))
        sendable = [message for message in messages if has_content(message)]
        if sendable:
            self._last = sendable[-1]
        await self._append_entries(self._new_entries(sendable, tokens))

    async def _append_entries(self, entries: Sequence[MessageEntry]) -> None:
        try:
            await self._log.append(entries)
        finally:  # also if the log lacks them
            placed = {**self._log.take_placed()}
            running = self.view.running.extended([placed.pop(entry.id, entry) for entry in entries])
            self.view = self.view.with_running(running)
            self._place(placed)

    async def flush(self) -> None:
        """Append the entries that the log lacks after an outage or an interrupt, if the store is up, as a flow."""
        await self._log.flush(is_nested=bool(self.ancestors))
        self._place(self._log.take_placed())

    def _place(self, placed: Mapping[str, MessageEntry]) -> None:
        """Let the view have the run's entries as the log has them, with their places."""
        if not placed:
            return
        if any(entry.placeholder for entry in placed.values()):  # placeholders may be of turns before
            turns = turns_of(placed.get(entry.id, entry) for entry in entries_of(self.view.turns))
            self.view = replace(self.view, turns=turns)
        self.view = self.view.with_running(self.view.running.with_places(placed))

    # Compactions.

    @property
    def can_compact(self) -> bool:
        """Whether the log has all entries of the run, so that a compaction can cover them."""
        return self._log.is_complete

    @property
    def unfinished(self) -> frozenset[str]:
        """The ids of entries that a compaction must keep, because the view does not have them."""
        return self._log.hidden

    async def append_compaction(self, compaction: CompactionEntry) -> CompactionEntry | None:
        """Append a compaction, as a flow; return it with its place in the log.

        It returns None, and appends nothing, if another run has compacted the branch since this run read it.
        """
        return await self._log.append_compaction(compaction)

    # Entries.

    def _new_entries(self, messages: Sequence[Message], context_tokens: int | None = None) -> list[MessageEntry]:
        """Return messages as entries of the run, the last one with the tokens that the provider reported for it."""
        run, resumption = self.run, self.run.resumption
        resumes = None if resumption is None else resumption.paused.run_ids[0]
        return [
            entry_of_run(
                message,
                turn=self.turn,
                run_id=run.id,
                branch=self.branch,
                agent=run.agent,
                resumes=resumes,
                context_tokens=None if index < len(messages) else context_tokens,
            )
            for index, message in enumerate(messages, 1)
        ]

    def _turn_number(self, new_messages: Sequence[Message], turns: Sequence[Turn]) -> int:
        """Return the number of the run's turn: a new one if there is a new message of the user, else the last one."""
        if self.ancestors:
            return self.turn
        if any(isinstance(message, UserMessage) for message in new_messages):
            return self._log.last_turn + 1
        return turns[-1].number if turns else max(1, self._log.last_turn)


_CURRENT: ContextVar[MemorySession | None] = ContextVar("traced_tools_memory_session", default=None)


def session_of(run_id: str, owner: object = None, memory: DecidesView | None = None) -> MemorySession | None:
    """Return the session of a run in its context; None if there is none.

    Args:
        run_id: the run.
        owner: the object that opened the session; None for any owner.
        memory: the memory of the session; None for any.
    """
    session = _CURRENT.get()
    while session is not None and not (
        session.run.id == run_id and owner in (None, session.owner) and memory in (None, session.memory)
    ):
        session = session.enclosing
    return session


def _branch_below(branch: str, agent: str) -> str:
    """Return the branch of an agent that an agent with `branch` asks."""
    below = ".".join(part for part in (branch, agent.replace(".", "_")) if part)
    if len(below) <= MOST_ID:
        return below
    return f"{sha256(branch.encode()).hexdigest()[:32]}.{agent.replace('.', '_')[:128]}"
