"""The memory that compacts a conversation when a model would be sent too much of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from traced_tools.core.checks import expect, expect_each
from traced_tools.core.tracebacks import is_debugging
from traced_tools.errors import ChatMemoryUnavailable
from traced_tools.flow.steps import is_async
from traced_tools.memory.chat_memory import ChatMemory
from traced_tools.memory.entries import CompactionEntry, MessageEntry
from traced_tools.memory.log_reader import LogReader
from traced_tools.memory.repository import ChatMemoryRepository
from traced_tools.memory.strategies import CompactionStrategy, may_go_on
from traced_tools.memory.telemetry import observe_compaction
from traced_tools.memory.tokens import estimate_tokens
from traced_tools.memory.triggers import CompactionTrigger
from traced_tools.memory.view import MemoryView
from traced_tools.observe.failures import error_type

if TYPE_CHECKING:
    from traced_tools.memory.observation import CompactionObservation
    from traced_tools.memory.session import MemorySession

_LOG = logging.getLogger(__name__)
_MOST_IDS: Final = 500
"""How many entries are read by id at once. Stores limit the parameters of a query."""
_GROWTH_BEFORE_RETRY: Final = 1.1


class CompactingChatMemory(ChatMemory):
    """Sends all of a conversation until a trigger fires; then, strategies leave out parts until no trigger fires.

    A compaction is an entry in the log: later runs begin with it. The log itself keeps everything. Between two
    compactions, each request begins with the messages of the request before, so that providers can cache them.

    Only the branch of the run is compacted. What runs may still add to is kept: turns of active runs of this process,
    turns without an answer that are younger than an hour, and turns with a pending call. Of the running turn, its
    question and its last round are kept.

    Args:
        repository: where the conversations are.
        when: one or several triggers, of which any may fire: `Tokens`, `Turns`, `WindowShare` or your own.
        how: one or several strategies in the order in which they are applied: `CutToolResults`, `Summarize`,
            `KeepTurns` or your own. If one fails, the others are applied, and the run does not try it again.

    Raises:
        TypeError, ValueError: for an invalid argument. The message names the argument.
    """

    def __init__(
        self,
        repository: ChatMemoryRepository,
        when: CompactionTrigger | Sequence[CompactionTrigger],
        how: CompactionStrategy | Sequence[CompactionStrategy],
    ) -> None:
        super().__init__(repository)
        self.when: Final[tuple[CompactionTrigger, ...]] = _as_tuple(
            "when", when, CompactionTrigger, "a trigger, such as Tokens(60_000)"
        )
        self.how: Final[tuple[CompactionStrategy, ...]] = _as_tuple(
            "how", how, CompactionStrategy, "a strategy, such as KeepTurns(6)"
        )

    async def read(self, log: LogReader) -> MemoryView:
        """Return the view since the last compaction of the branch, as a flow."""
        compaction = _last_compaction((await log.read(kind="compaction", last=1)).entries)
        while True:
            kept_entries = [] if compaction is None else await _read_ids(log, compaction.keeps)
            after = (await log.read(after=compaction.through if compaction else 0)).entries
            newer = _last_compaction(after)
            if newer is None or (compaction is not None and newer.id == compaction.id):
                break
            compaction = newer  # another run has compacted the branch meanwhile
        messages = {entry.position or 0: entry for entry in (*kept_entries, *after) if isinstance(entry, MessageEntry)}
        turns = log.turns(messages[position] for position in sorted(messages))
        if compaction is None:
            return MemoryView(turns=turns)
        return MemoryView(
            summary=compaction.summary,
            turns=turns,
            cuts=compaction.cuts,
            compacted=compaction,
        )

    async def fit(self, view: MemoryView, session: MemorySession) -> MemoryView:
        """Return the view, compacted if a trigger fires, as a flow."""
        if not session.can_compact or session.failed_strategies.issuperset(map(id, self.how)):
            return view
        if view.tokens().tokens <= session.compact_above or (trigger := self._find_trigger(view, session)) is None:
            return view
        with observe_compaction(session.run, trigger.name, session.iteration) as observed:
            compacted = await self._compact(view, session, trigger, observed)
        if self._find_trigger(compacted, session) is not None:
            session.compact_above = int(compacted.tokens().tokens * _GROWTH_BEFORE_RETRY)
        return compacted

    def _find_trigger(self, view: MemoryView, session: MemorySession) -> CompactionTrigger | None:
        return next((trigger for trigger in self.when if trigger.fires(view, session)), None)

    def _is_relieved(self, view: MemoryView, session: MemorySession, trigger: CompactionTrigger) -> bool:
        """Return whether the trigger that fired is relieved, and no other trigger fires."""
        return trigger.is_relieved(view, session) and self._find_trigger(view, session) is None

    async def _compact(
        self, before: MemoryView, session: MemorySession, trigger: CompactionTrigger, observed: CompactionObservation
    ) -> MemoryView:
        """Return the compacted view, if there is something to leave out and the log has recorded it."""
        view, applied, failures = before, dict[str, None](), len(session.failed_strategies)
        for strategy in self.how:
            while not self._is_relieved(view, session, trigger):
                after = await self._apply_strategy(strategy, view, session, observed)
                if after == view:
                    break
                is_shorter = len(after.entries) < len(view.entries)
                applied[strategy.name] = None
                view = _with_compaction(before, after, session, trigger.name, "+".join(applied))
                if not is_shorter:
                    break
        if view is not before:
            return await self._append(before, view, session, observed)
        if len(session.failed_strategies) == failures:
            observed.unchanged()
        return before

    async def _apply_strategy(
        self, strategy: CompactionStrategy, view: MemoryView, session: MemorySession, observed: CompactionObservation
    ) -> MemoryView:
        """Return the view with a strategy applied; `view` itself if the strategy fails, or has failed in this run."""
        if id(strategy) in session.failed_strategies:
            return view
        try:
            after = await strategy.compact(view, session)
            _check_kept(view, after, strategy.name)
        except Exception as error:
            session.failed_strategies.add(id(strategy))
            _survive(error, strategy.name, observed, session)
            return view
        return after

    async def _append(
        self, before: MemoryView, after: MemoryView, session: MemorySession, observed: CompactionObservation
    ) -> MemoryView:
        """Append the compaction of `after`, and return the view with it; `before` if the log does not accept it."""
        assert after.compacted is not None
        try:
            compaction = await session.append_compaction(after.compacted)
        except (ChatMemoryUnavailable, OSError) as error:  # if the store stays down, the next append deals with it
            _survive(error, after.compacted.strategy, observed, session)
            return before
        if compaction is None:
            observed.superseded()
            return before
        observed.compacted(
            compaction.id,
            compaction.strategy,
            after.left_out - before.left_out + len(after.cuts.keys() - before.cuts.keys()),
            compaction.tokens_before,
            compaction.tokens_after,
            compaction.tokens_estimated,
            compaction.through,
            compaction.branch,
        )
        return replace(after, compacted=compaction)


def _as_tuple(argument: str, value: Any, kind: type[Any], accepted: str) -> tuple[Any, ...]:
    """Return the object or objects of an argument as a tuple."""
    if not isinstance(value, kind) and not isinstance(value, Sequence):
        raise TypeError(f"{argument} must be {accepted}, or a sequence of several, not {type(value).__name__}")
    items: tuple[Any, ...] = (value,) if isinstance(value, kind) else tuple(value)
    expect_each(argument, items, kind, accepted)
    if not items:
        raise ValueError(f"{argument} must not be empty: pass {accepted}")
    for index, item in enumerate(items):
        expect(f"{argument}[{index}].name", getattr(item, "name", None), str, "a str: set it on your class")
        if hasattr(item, "fires") and is_async(item.fires):
            raise TypeError(f"{argument}[{index}].fires must be a plain method, which is not awaited: drop `async`")
    return items


def _last_compaction(entries: Sequence[MessageEntry | CompactionEntry]) -> CompactionEntry | None:
    return next((entry for entry in reversed(entries) if isinstance(entry, CompactionEntry)), None)


async def _read_ids(log: LogReader, ids: Sequence[str]) -> list[MessageEntry | CompactionEntry]:
    entries: list[MessageEntry | CompactionEntry] = []
    for begin in range(0, len(ids), _MOST_IDS):
        entries += (await log.read(ids=tuple(ids[begin : begin + _MOST_IDS]))).entries
    return entries


def _with_compaction(
    before: MemoryView, after: MemoryView, session: MemorySession, trigger: str, strategy: str
) -> MemoryView:
    """Return `after` with the entry that records the removed parts of `before`, as if the log had it already."""
    remaining = {entry.id: entry for entry in after.entries}
    removed = [entry for entry in before.entries if entry.id not in remaining]
    covered = [*removed, *(remaining[entry_id] for entry_id in after.cuts if entry_id in remaining)]
    last = 1 if before.compacted is None else before.compacted.through
    through = max([last, *(entry.position or 0 for entry in covered)])
    remaining_ids = [
        entry.id for entry in remaining.values() if entry.position is not None and entry.position <= through
    ]
    tokens = before.tokens().tokens
    cuts = {entry_id: most for entry_id, most in after.cuts.items() if entry_id in remaining}
    compaction = CompactionEntry(
        turn=session.turn,
        run_id=session.run.id,
        branch=session.branch,
        agent=session.run.agent,
        through=through,
        keeps=(*remaining_ids, *sorted(session.unfinished.difference(remaining))),
        cuts=cuts,
        summary=after.summary,
        trigger=trigger,
        strategy=strategy,
        tokens_before=tokens,
        tokens_after=max(0, tokens - estimate_tokens(before.messages) + estimate_tokens(after.messages)),
        tokens_estimated=True,
    )
    return replace(
        after,
        cuts=cuts,
        compacted=compaction.at(session.run.conversation_id or "", session.version + 1),
        left_out=before.left_out + len(removed),
    )


def _check_kept(before: MemoryView, after: MemoryView, strategy: str) -> None:
    """Raise an error if a strategy has removed a part that a view must keep."""
    if not isinstance(after, MemoryView):
        raise TypeError(f"the strategy {strategy} must return a MemoryView, not {type(after).__name__}")
    rounds = {round_.answer.id: round_ for turn in (*before.turns, before.running) for round_ in turn.rounds}
    remaining = [round_ for turn in (*after.turns, after.running) for round_ in turn.rounds]
    entry_ids = {entry.id for entry in after.entries}
    if (
        after.running.question != before.running.question
        or after.running.rounds[-1:] != before.running.rounds[-1:]
        or any(rounds.get(round_.answer.id) != round_ for round_ in remaining)
        or any(entry.id not in entry_ids for turn in before.turns if may_go_on(turn) for entry in turn.entries)
    ):
        raise ValueError(
            f"the strategy {strategy} must keep the question and the last round of the running turn, "
            "rounds as a whole, and turns that may_go_on"
        )


def _survive(error: Exception, strategy: str, observed: CompactionObservation, session: MemorySession) -> None:
    """Count an error that the run survives, and log its type; its text and traceback only for debugging."""
    observed.failed(error, strategy)
    text = "the compaction %s failed (%s): run %s goes on without it; TRACED_TOOLS_DEBUG=1 logs the traceback"
    _LOG.warning(text, strategy, error_type(error), session.run.id, exc_info=error if is_debugging() else None)
