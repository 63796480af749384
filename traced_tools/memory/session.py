"""The access of one run to one conversation: what it reads, what it appends, and the view that its model is sent."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from hashlib import sha256
from typing import Final, Literal, Protocol

from traced_tools.core.approval import PendingCall
from traced_tools.core.conversation import NOT_RUN, UNKNOWN_OUTCOME
from traced_tools.core.messages import (
    AssistantMessage,
    Message,
    ReasoningPart,
    TextPart,
    ToolCall,
    ToolMessage,
    ToolResultPart,
    Usage,
    UserMessage,
)
from traced_tools.errors import ChatMemoryUnavailable, ConversationConflict, ResumeError
from traced_tools.memory.conversation import MOST_ATTRIBUTE_NAME, MOST_ID
from traced_tools.memory.entries import CompactionEntry, LoggedPause, MemoryEntry, MessageEntry
from traced_tools.memory.log_reader import LogReader, register_run
from traced_tools.memory.repository import ChatMemoryRepository
from traced_tools.memory.telemetry import memory_failed, observe_memory
from traced_tools.memory.view import MemoryView, Round, Turn, results_in, turns_of
from traced_tools.observe.failures import error_type
from traced_tools.observe.observations import observe_missing_results
from traced_tools.run.context import RunContext

OnFailure = Literal["raise", "warn"]
_LOG = logging.getLogger(__name__)
_OUTAGES: Final = (ChatMemoryUnavailable, OSError)
_MOST_ATTEMPTS: Final = 1_000
"""How often an append is repeated because other runs append meanwhile. Each time, one of them makes progress."""
_MOST_OVERLAPPING: Final = 100
"""How many turns may have begun beside that of a run before it paused, so that the run can still be resumed."""
_WAITING: Final = f"{UNKNOWN_OUTCOME}its run ended while it waited for a decision."
_WITHDRAWN: Final = f"{NOT_RUN}it waited for approval, and the conversation went on."
_MAY_HAVE_RESUMED: Final = f"{UNKNOWN_OUTCOME}it waited for approval, and a run may have resumed with it."
_NOT_ANSWERED: Final = f"{UNKNOWN_OUTCOME}it waited for a decision, and the conversation went on."
_BEGUN: Final = f"{UNKNOWN_OUTCOME}a run resumed with it, and ended before its result was recorded."
_UNKNOWN: Final = f"{UNKNOWN_OUTCOME}the run ended before its result was recorded."


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
        iteration: the iteration of the tool loop, from 1; 0 outside the loop.
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
        self.iteration = 0
        self.compact_above = -1
        self.superseded: Sequence[ToolCall] = ()
        self.failed_strategies: set[int] = set()
        self._reader = LogReader(memory.repository, run.conversation_id or "", run.principal, self.branch)
        self._on_failure = on_failure
        self._streamed: list[str] = []
        self._streamed_iteration = 0
        self._has_no_log = run.conversation_id is None
        self._is_out = self._has_read = self._has_warned = False
        self._is_unsure = False  # whether the log may already have entries of `_unsaved`
        self._unsaved: list[MessageEntry] = []  # until the log has them, so that no outage or interrupt loses them
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
    def version(self) -> int:
        """The version of the log as this run last saw it."""
        return self._reader.log.version

    @property
    def conversation_id(self) -> str:
        """The id of the conversation; empty if there is none."""
        return self._reader.conversation_id

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
        register_run(self.run)
        # The view, the resumed turn and the append must be of one version of the log. If another run appends meanwhile,
        # everything is read and decided again.
        for _ in range(_MOST_ATTEMPTS):
            view, resumed = await self._read(), Turn()
            if self.run.resumption is not None and self._has_read:
                paused_turn = await self._find_resumed_turn(self.run.resumption.paused.run_ids)
                if paused_turn is None:
                    continue
                view, self._resumed = _with_running(view, paused_turn), paused_turn
                resumed = view.running
            if self.ancestors:
                view = replace(view, turns=_without_siblings(view.turns, self.turn, resumed))
            previous_turns = view.turns
            if view.left_out and not previous_turns:  # the turn before is longer than a window, but its calls may wait
                last = await self._last_turns(1)
                if last is None:
                    continue
                previous_turns = last
            new_messages, prefix, request_only = _split(view, conversation)
            if resumed.size:  # the run that paused has appended the question
                new_messages = ()
            turns = (*view.turns, resumed) if resumed.size else view.turns
            self.turn, self._last = self._turn_number(new_messages, turns), new_messages[-1] if new_messages else None
            question, placeholders = self._new_entries(new_messages, self.turn), _placeholders(turns, new_messages)
            outcomes: list[MessageEntry] = []
            self.superseded = ()
            if self.run.resumption is None:
                outcomes, self.superseded = _waiting_outcomes(
                    previous_turns, new_messages, await self._withdraw_runs(previous_turns, new_messages)
                )
            # Without turns in the view, the outcomes are of a turn that it leaves out: only the log gets them.
            visible_outcomes = outcomes if view.turns else []
            if placeholders or visible_outcomes:
                turns = turns_of([*_entries_of_turns(turns), *placeholders, *visible_outcomes])
            if resumed.size:  # its last calls get their results
                *earlier, resumed = turns
                turns = tuple(earlier)
                if self._last is None and resumed.rounds:
                    self._last = resumed.rounds[-1].answer.message
            self.view = replace(
                view,
                preceding=prefix,
                turns=turns,
                request_only=request_only,
                running=Turn.of((*resumed.entries, *question)),
            )
            self._unsaved = [*placeholders, *outcomes, *question]
            if await self._save():
                break
        else:
            raise self._conflict()
        missing = sum(len(results_in(entry)) for entry in (*placeholders, *outcomes))
        if missing:
            not_run = len(self.superseded)
            observe_missing_results(self.run, not_run, missing - not_run, iteration=self.iteration)

    async def _withdraw_runs(self, turns: Sequence[Turn], new_messages: Sequence[Message]) -> Container[str | None]:
        """Withdraw the runs that wait in `turns`, because the conversation goes on; return those that never resume.

        The store of a run's state decides whether the run has resumed. The log decides about a state without a store: a
        run that resumes from it writes to the log first, which fails once this run has appended its question.
        """
        pauses = {
            entry.run_id: entry.pause
            for turn in turns
            for round_ in turn.rounds
            for entry in round_.waiting_calls().values()
        }
        run_ids = [*pauses]
        if (
            turns
            and not turns[-1].is_answered
            and (
                any(isinstance(message, UserMessage) for message in new_messages)
                or any(entry.pause is not None for entry in turns[-1].entries)
            )
        ):
            run_ids += [entry.run_id for entry in turns[-1].entries]
        withdrawn_ids = {
            run_id
            for run_id, pause in pauses.items()
            if pause is not None
            and pause.keeper == "log"
            and self._on_failure == "raise"  # with `warn`, the log may lack the question of this run
        }
        if self.run.withdraw is not None:
            for run_id in dict.fromkeys(run_ids):
                if run_id is not None and await self.run.withdraw(run_id):
                    withdrawn_ids.add(run_id)
        return withdrawn_ids

    async def _find_resumed_turn(self, run_ids: Sequence[str]) -> Turn | None:
        """Return the whole turn that the run continues; None if the log has changed meanwhile.

        The view may lack some or all of its entries, as of any turn before the run.

        Args:
            run_ids: the runs that the run resumes.

        Raises:
            ResumeError: if a turn has begun since the last of these runs has paused, or a run has continued its turn.
        """
        turns = await self._last_turns(1)
        if turns is None or self._is_out:
            return None if turns is None else Turn()
        if self._reader.log.conversation is None:
            raise ResumeError(
                "the conversation is no longer in the memory, so the run that waits cannot be resumed",
                lasting="conversation_changed",
            )
        is_nested = bool(self.ancestors)
        turn = _waiting_turn(turns, run_ids, is_nested=is_nested)
        if turn is None:  # later turns may have begun before the run paused
            turns = await self._last_turns(_MOST_OVERLAPPING)
            if turns is None or self._is_out:
                return None if turns is None else Turn()
            turn = _waiting_turn(turns, run_ids, is_nested=is_nested)
        if turn is None:
            raise ResumeError(
                "the conversation went on while the call waited, or a run has resumed from the state before: "
                "the run cannot be resumed; what ran before is in the audit trail",
                lasting="conversation_changed",
            )
        return turn

    async def _last_turns(self, count: int) -> tuple[Turn, ...] | None:
        """Return the last turns of the log with all entries; None if the log has changed since the view was read."""
        version = self._reader.log.version
        try:
            turns = await self._reader.last_turns(count)
        except _OUTAGES as error:
            self._handle_outage("search_memory", error)
            return ()
        return turns if self._reader.log.version == version else None

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
        if not self._has_read:
            raise ChatMemoryUnavailable(
                "the memory keeps the run that waits, and cannot be read: resume the run when the memory is up again"
            )
        waiting = [
            ToolResultPart(call_id=call.id or "", name=call.name, content=_BEGUN, is_error=True)
            for round_ in self._resumed.rounds
            for call in round_.calls
            if call.id in round_.waiting_calls()
        ]
        if not waiting:  # the memory was down when the run paused, so the log does not have the calls
            return
        [entry] = self._new_entries([ToolMessage(waiting)], self.turn)
        for _ in range(_MOST_ATTEMPTS):
            appended = await self._extend_with([entry.replace(placeholder=True)])
            if appended is not None:
                entries = [entry for entry in appended if isinstance(entry, MessageEntry)]
                self.view = replace(self.view, running=Turn.of((*self.view.running.entries, *entries)))
                return
            await self._reader.catch_up()
            await self._find_resumed_turn(paused.run_ids)  # raises if another run has resumed from the state
        raise self._conflict()

    async def go_on(self, conversation: Sequence[Message]) -> None:
        """Append the new messages of a further request of the run, as a flow.

        If an advisor sends a request again, the view goes back to where it was then.

        Args:
            conversation: the messages without the instructions: the whole conversation, or only its new messages.
        """
        new_messages = self._after_last(conversation)
        if new_messages is None:
            new_messages = self._after_rewinding(conversation)
        await self.append(new_messages)

    async def finish(self, conversation: Sequence[Message], *, failing: bool = False) -> None:
        """Append the messages that no request to the model has had, such as the results of the last tools, as a flow.

        Args:
            conversation: the messages of the run so far.
            failing: whether the run fails already; a failure of the store is then counted and not raised.
        """
        if failing:
            self._on_failure = "warn"
        new_messages = self._after_last(conversation) or ()
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
        parts = [
            ToolResultPart(call_id=call.call_id, name=call.tool, content=_WAITING, is_error=True) for call in pending
        ]
        begun_ids = tuple(call.call_id for call in pending if call.has_begun)
        pause = LoggedPause(keeper="log" if self.run.withdraw is None else "store", begun=begun_ids)
        [entry] = self._new_entries([ToolMessage(parts)], self.turn)
        await self._append_entries([entry.replace(placeholder=True, pause=pause)])

    def stream(self, text: str, iteration: int, *, restarts: bool) -> None:
        """Remember a piece of an answer that is streamed."""
        if restarts or iteration != self._streamed_iteration:
            self._streamed, self._streamed_iteration = [], iteration
        self._streamed.append(text)

    async def finish_streamed(self) -> None:
        """Append the part of an answer that was streamed before an error or the caller ended the run, as a flow."""
        self._on_failure = "warn"
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
        sendable = [message for message in messages if _says_something(message)]
        entries = self._new_entries(sendable, self.turn)
        if usage is not None and entries and usage.input_tokens is not None:
            tokens = usage.input_tokens + (usage.output_tokens or 0)
            entries[-1] = entries[-1].replace(context_tokens=max(0, tokens))
        if sendable:
            self._last = sendable[-1]
        await self._append_entries(entries)

    async def _append_entries(self, entries: Sequence[MessageEntry]) -> None:
        if entries:
            self.view = replace(self.view, running=Turn.of((*self.view.running.entries, *entries)))
            self._unsaved += entries
        for _ in range(_MOST_ATTEMPTS):
            if self._is_unsure and not self._is_out:  # an append was interrupted, and may have been stored
                await self._catch_up()
            if await self._save():
                return
            await self._catch_up()
        raise self._conflict()

    async def flush(self) -> None:
        """Append the entries that the log lacks after an outage or an interrupt, if the store is up, as a flow."""
        if not self._unsaved or self._has_no_log:
            return
        self._on_failure = "warn"
        for _ in range(_MOST_ATTEMPTS):
            self._is_out = False
            await self._catch_up()
            # The number of the last turn was unknown during the outage, so the entries get their turn now.
            if self._unsaved and not self._has_read and not self.ancestors:
                is_new = isinstance(self._unsaved[0].message, UserMessage)
                turn = max(1, self._reader.log.last_turn + is_new)
                self._unsaved = [entry.replace(turn=turn) for entry in self._unsaved]
            if await self._save():
                return

    # Compactions.

    @property
    def can_compact(self) -> bool:
        """Whether the log has all entries of the run, so that a compaction can cover them."""
        return self._has_read and not self._is_out and not self._unsaved and not self._has_no_log

    @property
    def unfinished(self) -> frozenset[str]:
        """The ids of entries that a compaction must keep, because the view does not have them."""
        return self._reader.hidden

    async def append_compaction(self, compaction: CompactionEntry) -> CompactionEntry | None:
        """Append a compaction, as a flow; return it with its place in the log.

        It returns None, and appends nothing, if another run has compacted the branch since this run read it.
        """
        for _ in range(_MOST_ATTEMPTS):
            appended = await self._extend_with([compaction])
            if appended is not None:
                last = appended[-1]
                assert isinstance(last, CompactionEntry)
                return last
            changes = await self._reader.catch_up()
            if self._reader.is_replaced or any(isinstance(entry, CompactionEntry) for entry in changes.entries):
                return None
        raise self._conflict()

    # The log.

    async def _read(self) -> MemoryView:
        """Return the view of the log; an empty one if the store is down and the run goes on without it."""
        inherited = self.view.inherited
        if self._has_no_log:
            return MemoryView(inherited=inherited)
        try:
            with observe_memory(self.run, "search_memory", self.iteration) as observed:
                view = await self.memory.read(self._reader)
                observed.read(
                    sum([turn.size for turn in view.turns]), view.left_out, lambda: _entries_of_turns(view.turns)
                )
        except _OUTAGES as error:
            self._handle_outage("search_memory", error)
            return MemoryView(inherited=inherited)
        self._has_read = True
        return replace(view, inherited=inherited) if inherited else view

    async def _catch_up(self) -> None:
        """Read the changes of the log, and place the entries of the run that it already has."""
        try:
            if not self._has_read:
                await self._reader.read(last=1)
                return
            changes = await self._reader.catch_up()
        except _OUTAGES as error:
            self._handle_outage("upsert_memory", error)
            return
        self._is_unsure = False
        self._has_no_log |= self._reader.is_replaced  # this run must not bring a deleted conversation back
        self._place([entry for entry in changes.entries if isinstance(entry, MessageEntry)])

    async def _save(self) -> bool:
        """Append the entries that the log lacks and return True; return False if the log has changed since it was read.

        During an outage, the entries wait for the end of the run.
        """
        if not self._unsaved or self._is_out or self._has_no_log:
            return True
        self._is_unsure = True  # an interrupt can end this run's flow after the store has committed
        try:
            appended = await self._extend_with(self._unsaved)
        except _OUTAGES as error:
            self._handle_outage("upsert_memory", error)
            return True
        self._is_unsure = False
        if appended is None:
            return False
        self._place([entry for entry in appended if isinstance(entry, MessageEntry)])
        return True

    def _place(self, stored_entries: Sequence[MessageEntry]) -> None:
        """Replace the run's entries that the log has by the same entries with their places in the log."""
        placed_entries = {entry.id: entry for entry in stored_entries}
        ours = [entry for entry in self._unsaved if entry.id in placed_entries]
        if not ours:
            return
        self._unsaved = [entry for entry in self._unsaved if entry.id not in placed_entries]
        running = Turn.of(placed_entries.get(entry.id, entry) for entry in self.view.running.entries)
        turns = self.view.turns
        if any(entry.placeholder for entry in ours):
            turns = turns_of(placed_entries.get(entry.id, entry) for entry in _entries_of_turns(turns))
        self.view = replace(self.view, turns=turns, running=running)

    async def _extend_with(self, entries: Sequence[MemoryEntry]) -> Sequence[MemoryEntry] | None:
        """Append entries to the log as it was read; return them with their places, or None if the log has changed."""
        with observe_memory(self.run, "upsert_memory", self.iteration) as observed:
            try:
                log = await self.memory.repository.extend_flow(
                    self._reader.log, entries, principal=self.run.principal, attributes=self._attributes()
                )
            except ConversationConflict:
                observed.conflict()
                return None
            self._reader.log = log
            message_entries = [entry for entry in entries if isinstance(entry, MessageEntry)]
            observed.stored(len(message_entries), lambda: message_entries)
        return log.entries

    def _attributes(self) -> dict[str, str]:
        """Return the attributes of the run with texts as values, by which an application finds the conversation."""
        return {
            name: value
            for name, value in self.run.attributes.items()
            if isinstance(value, str) and len(name) <= MOST_ATTRIBUTE_NAME and 1 <= len(value) <= MOST_ID
        }

    def _handle_outage(self, operation: Literal["search_memory", "upsert_memory"], error: Exception) -> None:
        """Go on without the store, and count the failure; with `on_failure="raise"`, raise `error`."""
        if self._on_failure == "raise":
            raise error
        memory_failed(self.run, operation, error)
        if not self._has_warned:
            _LOG.warning("a conversation's store fails (%s): the run goes on without it", error_type(error))
        self._is_out = self._has_warned = True

    def _conflict(self) -> ConversationConflict:
        version = self._reader.log.version
        return ConversationConflict(self._reader.conversation_id, version, version)

    # Entries.

    def _new_entries(self, messages: Iterable[Message], turn: int) -> list[MessageEntry]:
        run, resumption = self.run, self.run.resumption
        of_run = {"turn": turn, "run_id": run.id, "branch": self.branch, "agent": run.agent}
        resumes = None if resumption is None else resumption.paused.run_ids[0]
        return [MessageEntry(message, resumes=resumes, **of_run) for message in messages]

    def _turn_number(self, new_messages: Sequence[Message], turns: Sequence[Turn]) -> int:
        """Return the number of the run's turn: a new one if there is a new message of the user, else the last one."""
        if self.ancestors:
            return self.turn
        if any(isinstance(message, UserMessage) for message in new_messages):
            return self._reader.log.last_turn + 1
        return turns[-1].number if turns else max(1, self._reader.log.last_turn)

    def _after_last(self, conversation: Sequence[Message]) -> Sequence[Message] | None:
        """Return what follows the last message that the run added; None if the conversation does not have it."""
        for index in reversed(range(len(conversation))):
            if self._last is not None and _is_same(conversation[index], self._last):
                return conversation[index + 1 :]
        return None

    def _after_rewinding(self, conversation: Sequence[Message]) -> Sequence[Message]:
        """Return what follows the last message of the running turn in a conversation; the turn then ends with it.

        A conversation without any of them has only new messages, or ends with them.
        """
        running = self.view.running.entries
        for index in reversed(range(len(conversation))):
            for place in reversed(range(len(running))):
                if conversation[index] == running[place].message:
                    self.view = replace(self.view, running=Turn.of(running[: place + 1]))
                    return conversation[index + 1 :]
        answers = [index for index, message in enumerate(conversation) if isinstance(message, AssistantMessage)]
        return conversation[answers[-1] + 1 :] if answers else conversation


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


def _is_same(message: Message, original: Message) -> bool:
    """Return whether a message is the original one, even if an advisor has changed the text beside its calls."""
    if isinstance(message, AssistantMessage) and isinstance(original, AssistantMessage) and original.tool_calls:
        return [call.id for call in message.tool_calls] == [call.id for call in original.tool_calls]
    return message == original


def _says_something(message: Message) -> bool:
    if not isinstance(message, AssistantMessage):
        return True
    return any(
        part.text.strip() if isinstance(part, TextPart) else not isinstance(part, ReasoningPart)
        for part in message.parts
    )


def _split(
    view: MemoryView, conversation: Sequence[Message]
) -> tuple[Sequence[Message], tuple[Message, ...], tuple[Message, ...]]:
    """Return the messages to append, and those to send with this request only: before the view, and after it.

    Messages of the view are not appended again. If the conversation does not continue the view, only the last message
    of the user and the messages after it are appended.
    """
    if (
        len(conversation) == 1
        and isinstance(conversation[0], UserMessage)
        and not view.running.size
        and view.turns
        and view.turns[-1].is_answered
    ):
        return conversation, (), ()  # the common case: the caller passes the question only, so nothing is compared
    view_messages = view.messages[len(view.inherited) :]  # an outer agent may have been asked the same
    if (end := _end_of_view(view_messages, conversation)) is not None:
        has_all = not view.left_out and not view.summary
        return conversation[end:], tuple(conversation[: max(0, end - len(view_messages))] if has_all else ()), ()
    questions = [index for index, message in enumerate(conversation) if isinstance(message, UserMessage)]
    begin = questions[-1] if questions else 0
    if not begin:
        return conversation, (), ()
    exchanges = _exchanges(message for turn in view.turns for message in turn.messages())[-2:]
    if exchanges and exchanges == _exchanges(conversation[:begin])[-len(exchanges) :]:
        return conversation[begin:], (), ()  # the same conversation, of which the view has less, or other tool calls
    return conversation[begin:], (), tuple(conversation[:begin])


def _end_of_view(view_messages: Sequence[Message], conversation: Sequence[Message]) -> int | None:
    """Return where in a conversation the messages of the view end; None if it does not have them.

    A conversation has them if it has all of them in a row, or if it begins with the last of them.
    """
    view_messages, conversation, size = list(view_messages), list(conversation), len(view_messages)
    if not view_messages:
        return None
    for begin in reversed(range(len(conversation) - size + 1)):
        if conversation[begin : begin + size] == view_messages:
            return begin + size
    for shared in reversed(range(1, min(size, len(conversation)) + 1)):
        if view_messages[-shared:] == conversation[:shared]:
            return shared
    return None


def _exchanges(messages: Iterable[Message]) -> list[tuple[str, str]]:
    """Return the role and the text of each message, without tool calls and their results."""
    return [
        (message.role, message.text)
        for message in messages
        if isinstance(message, UserMessage) or (isinstance(message, AssistantMessage) and not message.tool_calls)
    ]


def _placeholders(turns: Iterable[Turn], new_messages: Iterable[Message]) -> list[MessageEntry]:
    """Return entries with results for the calls of ended runs that have none, unless `new_messages` has them."""
    answered_ids = {
        part.call_id for message in new_messages if isinstance(message, ToolMessage) for part in message.results
    }
    entries = []
    for turn in turns:
        for round_ in turn.rounds:
            parts = [
                ToolResultPart(call_id=call.id or "", name=call.name, content=_UNKNOWN, is_error=True)
                for call in round_.open_calls()
                if call.id not in answered_ids
            ]
            if parts:
                entries.append(_placeholder(round_, parts))
    return entries


def _waiting_outcomes(
    turns: Iterable[Turn], new_messages: Iterable[Message], withdrawn_ids: Container[str | None]
) -> tuple[list[MessageEntry], list[ToolCall]]:
    """Return entries with the outcomes of calls that waited when a run began, and the calls that were not run.

    Args:
        turns: the turns before the run.
        new_messages: the new messages of the run, which may have results of the calls.
        withdrawn_ids: the runs that wait and never resume.
    """
    answered_ids = {
        part.call_id for message in new_messages if isinstance(message, ToolMessage) for part in message.results
    }
    entries: list[MessageEntry] = []
    not_run: list[ToolCall] = []
    for turn in turns:
        for round_ in turn.rounds:
            parts, waiting = [], round_.waiting_calls()
            for call in round_.calls:
                entry = waiting.get(call.id or "")
                if entry is None or entry.pause is None or call.id in answered_ids:
                    continue
                text = _WITHDRAWN if entry.run_id in withdrawn_ids else _MAY_HAVE_RESUMED
                if call.id in entry.pause.begun:
                    text = _NOT_ANSWERED
                if text is _WITHDRAWN:
                    not_run.append(call)
                parts.append(ToolResultPart(call_id=call.id or "", name=call.name, content=text, is_error=True))
            if parts:
                entries.append(_placeholder(round_, parts))
    return entries, not_run


def _placeholder(round_: Round, parts: Sequence[ToolResultPart]) -> MessageEntry:
    """Return an entry for results that never arrived, in the name of the run that made the calls."""
    place = {name: getattr(round_.answer, name) for name in ("turn", "run_id", "branch", "agent")}
    return MessageEntry(ToolMessage(parts), placeholder=True, **place)


def _without_siblings(turns: Sequence[Turn], number: int, running: Turn) -> tuple[Turn, ...]:
    """Return the turns without those that the same turn of an outer agent has begun and that wait or are later.

    Runs of one agent that an outer agent asks at the same time don't see each other, nor do they after a pause.

    Args:
        turns: the turns of the branch before the run.
        number: the number of the outer agent's turn.
        running: the turn that the run goes on with; empty for a run that begins.
    """
    first_position = min(map(_position, running.entries), default=None)

    def is_sibling(turn: Turn) -> bool:
        is_later = first_position is not None and max(map(_position, turn.entries)) > first_position
        return turn.number == number and (turn.waits or is_later)

    return tuple(turn for turn in turns if not is_sibling(turn))


def _waiting_turn(turns: Sequence[Turn], run_ids: Sequence[str], *, is_nested: bool) -> Turn | None:
    """Return the turn in which a run waits; None if it waits in none of them, or another turn has begun since then.

    Args:
        turns: the last turns of the log.
        run_ids: the ids of the run, and before it those of the runs that it resumed.
        is_nested: whether an outer agent has asked for the run. It may have asked for others in the same turn.
    """
    for turn in turns:
        last = max(turn.entries, key=_position)
        if last.pause is not None and last.run_id == run_ids[-1]:
            others = [other for other in turns if not (is_nested and other.number == turn.number)]
            is_last = all(min(map(_position, other.entries)) <= _position(last) for other in others)
            return turn if is_last else None
    if is_nested:
        turns = [turn for turn in turns if turn.number != turns[-1].number or turn.last.run_id in run_ids]
    if not turns or turns[-1].last.run_id not in run_ids:
        return None
    # the run could not record that it paused, because the memory was down
    return turns[-1] if turns[-1].last.pause is not None or not turns[-1].last.placeholder else None


def _position(entry: MessageEntry) -> int:
    return entry.position or 0


def _with_running(view: MemoryView, turn: Turn) -> MemoryView:
    """Return a view with a turn as the running one, without the entries that a compaction of the view covers."""
    entries, compaction = turn.entries, view.compacted
    if compaction is not None:
        kept_ids = {*compaction.keeps}
        entries = tuple(
            entry for entry in entries if (entry.position or 0) > compaction.through or entry.id in kept_ids
        )
    ids = {entry.id for entry in turn.entries}
    turns = tuple(other for other in view.turns if ids.isdisjoint(entry.id for entry in other.entries))
    return replace(view, turns=turns, running=Turn.of(entries))


def _entries_of_turns(turns: Iterable[Turn]) -> Iterator[MessageEntry]:
    return (entry for turn in turns for entry in turn.entries)
