"""The view of a conversation: the messages of its log that a model is sent, in turns.

A log has the entries of all runs in the order in which they were appended. If two runs of a conversation overlap, their
entries alternate. The view has the entries of one run together, and each call directly before its results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from traced_tools.core.conversation import answers_to
from traced_tools.core.frozen import frozen
from traced_tools.core.messages import AssistantMessage, Message, ToolCall, ToolMessage, ToolResultPart, UserMessage
from traced_tools.memory.entries import CompactionEntry, MessageEntry
from traced_tools.memory.tokens import TokenCount, estimate_tokens

_MOST_NOTE: Final = 120
"""The maximum length of the note that replaces the rest of a result."""
Cuts = Mapping[str, Mapping[str, int]]
"""How many characters are shown of results, by the id of the entry with the results and the id of the call."""
_NO_CUTS: Final[Cuts] = {}


@frozen
class Round:
    """An answer of the model, and what followed it before the next answer: the results of its calls.

    Attributes:
        answer: the entry with the answer.
        following: the entries with results, and with messages of the user that an advisor added.
    """

    answer: MessageEntry
    following: tuple[MessageEntry, ...] = ()

    @property
    def entries(self) -> tuple[MessageEntry, ...]:
        """All entries, in order."""
        return (self.answer, *self.following)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls of the answer."""
        message = self.answer.message
        return message.tool_calls if isinstance(message, AssistantMessage) else ()

    def open_calls(self) -> tuple[ToolCall, ...]:
        """Return the calls that have no result, not even a placeholder."""
        if not self.calls:
            return ()
        return tuple(call for call, result in zip(self.calls, self._results(_NO_CUTS), strict=True) if result is None)

    def is_settled(self) -> bool:
        """Return whether each call has a result that is not a placeholder."""
        real = [part for entry in self.following if not entry.placeholder for part in _shown_results(entry, _NO_CUTS)]
        return None not in answers_to(self.calls, real)

    @property
    def is_gone_on_with(self) -> bool:
        """Whether its run has gone on with it: a call has a result that is not a placeholder, or the run has paused."""
        return any(entry.pause is not None or (not entry.placeholder and results_in(entry)) for entry in self.following)

    def waiting_calls(self) -> Mapping[str, MessageEntry]:
        """Return the calls of which nothing is known but that they wait, by id, each with the entry of the pause."""
        if all(entry.pause is None for entry in self.following):  # the common case
            return {}
        last = {part.call_id: entry for entry in self.following for part in results_in(entry)}
        return {call_id: entry for call_id, entry in last.items() if entry.pause is not None}

    def messages(self, cuts: Cuts) -> Iterator[Message]:
        """Yield the messages, with the results of the calls in one message directly after the answer."""
        yield self.answer.message
        if self.calls:
            first = self.following[0] if self.following else None
            if first is not None and first.id not in cuts and len(self.following) == 1 and self._answers(first):
                yield first.message  # the common case
                return
            results = [part for part in self._results(cuts) if part is not None]
            if results:
                yield ToolMessage(results)
        yield from (entry.message for entry in self.following if not isinstance(entry.message, ToolMessage))

    def _answers(self, entry: MessageEntry) -> bool:
        message = entry.message
        return isinstance(message, ToolMessage) and [part.call_id for part in message.results] == [
            call.id for call in self.calls
        ]

    def _results(self, cuts: Cuts) -> list[ToolResultPart | None]:
        """Return the result of each call; the last placeholder only for a call that has no other."""
        real = [part for entry in self.following if not entry.placeholder for part in _shown_results(entry, cuts)]
        results = answers_to(self.calls, real)
        if None not in results:
            return results
        last_first = [entry for entry in reversed(self.following) if entry.placeholder]
        instead = answers_to(self.calls, [part for entry in last_first for part in _shown_results(entry, cuts)])
        return [result or placeholder for result, placeholder in zip(results, instead, strict=True)]


class _Beginning(NamedTuple):
    """The messages that the model is sent of the question and the first rounds of a turn, whatever rounds follow."""

    cuts: Cuts
    rounds: int
    messages: tuple[Message, ...]


@frozen
class Turn:
    """What one run added to a conversation in a turn.

    Attributes:
        question: the entries before the first answer, usually one message of the user. If a run paused whose calls the
            log does not have, the placeholder of the pause is here and not sent to the model.
        rounds: the answers, each with the results of its calls. The last one of a turn that has ended has no calls.
    """

    question: tuple[MessageEntry, ...] = ()
    rounds: tuple[Round, ...] = ()
    _beginning: _Beginning | None = field(default=None, init=False, repr=False, compare=False)
    _messages: tuple[Cuts, tuple[Message, ...]] | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, entries: Iterable[MessageEntry]) -> Turn:
        """Return the turn that consists of `entries`, which are in the order of the log."""
        return cls().extended(entries)

    def extended(self, entries: Iterable[MessageEntry]) -> Turn:
        """Return the turn with further entries, which are in the order of the log.

        Nothing is made again of the rounds that no entry belongs to, so that it costs the same in a long turn.
        """
        question, rounds, unchanged = [*self.question], [*self.rounds], len(self.rounds)
        for entry in entries:
            message = entry.message
            if isinstance(message, AssistantMessage):
                rounds.append(Round(entry))
                continue
            place = _find_round(message, rounds) if isinstance(message, ToolMessage) else len(rounds) - 1
            if place < 0:
                question.append(entry)
            else:
                rounds[place] = Round(rounds[place].answer, (*rounds[place].following, entry))
                unchanged = min(unchanged, place)
        return self._continued(question, rounds, unchanged)

    def with_places(self, placed: Mapping[str, MessageEntry]) -> Turn:
        """Return the turn with entries of `placed` in place of those with the same ids, which are mostly the last."""
        question, rounds, unchanged, missing = [*self.question], [*self.rounds], len(self.rounds), len(placed)
        for place in reversed(range(len(rounds))):
            if not missing:
                break
            entries = rounds[place].entries
            if count := sum(entry.id in placed for entry in entries):
                answer, *following = [placed.get(entry.id, entry) for entry in entries]
                rounds[place], unchanged, missing = Round(answer, tuple(following)), place, missing - count
        if missing:
            question = [placed.get(entry.id, entry) for entry in question]
        return self._continued(question, rounds, unchanged)

    def _continued(self, question: Iterable[MessageEntry], rounds: Sequence[Round], unchanged: int) -> Turn:
        """Return a turn that has the first `unchanged` rounds of this one."""
        turn, beginning = Turn(tuple(question), tuple(rounds)), self._beginning
        if beginning is not None and beginning.rounds <= unchanged and turn.question == self.question:
            _set_beginning(turn, beginning)
        return turn

    @property
    def size(self) -> int:
        """The number of entries."""
        size = len(self.question) + len(self.rounds)
        for round_ in self.rounds:
            size += len(round_.following)
        return size

    @property
    def sent(self) -> int:
        """The number of messages that a model is sent of it."""
        return len(self.messages())

    @property
    def last(self) -> MessageEntry:
        """The last entry."""
        return self.rounds[-1].entries[-1] if self.rounds else self.question[-1]

    @property
    def number(self) -> int:
        """The number of the turn in the conversation, from 1."""
        return self.last.turn

    @property
    def entries(self) -> tuple[MessageEntry, ...]:
        """All entries, in order."""
        return (*self.question, *(entry for round_ in self.rounds for entry in round_.entries))

    @property
    def waits(self) -> bool:
        """Whether calls of it wait for a decision."""
        return any(round_.waiting_calls() for round_ in self.rounds)

    @property
    def is_answered(self) -> bool:
        """Whether it ends with an answer that calls no tools."""
        return bool(self.rounds) and not self.rounds[-1].calls and not self.rounds[-1].following

    def open_calls(self) -> tuple[ToolCall, ...]:
        """Return the calls that have no result, not even a placeholder."""
        return tuple(call for round_ in self.rounds for call in round_.open_calls())

    def messages(self, cuts: Cuts | None = None) -> tuple[Message, ...]:
        """Return the messages that a model is sent of it; see `MemoryView` for `cuts`."""
        beginning, cuts = self._beginning, cuts or _NO_CUTS
        if self._messages is not None and self._messages[0] is cuts:
            return self._messages[1]
        if beginning is None or beginning.cuts is not cuts:
            question = tuple(entry.message for entry in self.question if entry.pause is None)
            beginning = _Beginning(cuts, 0, question)
        *earlier, last = self.rounds[beginning.rounds :] or (None,)
        if last is None:
            return beginning.messages
        if earlier:
            messages = list(beginning.messages)
            for round_ in earlier:
                if round_.calls or round_.following:  # otherwise, the next answer replaces it
                    messages += round_.messages(cuts)
            beginning = _Beginning(cuts, len(self.rounds) - 1, tuple(messages))
        all_messages = (*beginning.messages, *last.messages(cuts))
        _set_beginning(self, beginning)
        _set_messages(self, (cuts, all_messages))
        return all_messages


_set_beginning, _set_messages = (vars(Turn)[name].__set__ for name in ("_beginning", "_messages"))


@dataclass(frozen=True)
class MemoryView:
    """What a model is sent of a conversation.

    Attributes:
        inherited: the messages that a sub-agent sees of the agents that called it.
        summary: the messages that replace what a compaction left out.
        preceding: messages that the caller passes and the log does not have, which precede what the log has.
        turns: the turns before this run, the oldest first.
        request_only: messages of the request that the log does not keep, such as examples.
        running: the turn of this run.
        cuts: the number of characters that are shown of tool results.
        compacted: the last compaction of the branch, which is in the log; None if there is none.
        left_out: the number of messages that were read or shown before, and are not in the view.
    """

    inherited: tuple[Message, ...] = ()
    summary: tuple[Message, ...] = ()
    preceding: tuple[Message, ...] = ()
    turns: tuple[Turn, ...] = ()
    request_only: tuple[Message, ...] = ()
    running: Turn = field(default=Turn())
    cuts: Cuts = field(default_factory=dict)
    compacted: CompactionEntry | None = None
    left_out: int = 0

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """The messages, in the order in which the model is sent them."""
        return (*self.preceding, *self.history, *self.request_only, *self.running.messages(self.cuts))

    @cached_property
    def history(self) -> tuple[Message, ...]:
        """The messages that the memory adds to what the run is asked."""
        earlier = (message for turn in self.turns for message in turn.messages(self.cuts))
        return (*self.inherited, *self.summary, *earlier)

    @cached_property
    def entries(self) -> tuple[MessageEntry, ...]:
        """The entries of all turns, in order."""
        return tuple(entry for turn in (*self.turns, self.running) for entry in turn.entries)

    def with_running(self, running: Turn) -> MemoryView:
        """Return the view with another turn of this run, and the same history."""
        view = object.__new__(type(self))  # `dataclasses.replace` takes ten times as long
        vars(view).update(vars(self), running=running, history=self.history)
        for name in ("messages", "entries"):
            vars(view).pop(name, None)
        return view

    def tokens(self) -> TokenCount:
        """Return the tokens of the view: as far as possible, the number that the provider reported.

        That is the number for the last answer, plus an estimate of the messages after it. After a compaction and before
        the next answer, it is the number that the compaction states, plus an estimate of the entries after it.
        """
        compacted_at = 0 if self.compacted is None else self.compacted.position or 0
        after: list[Message] = []
        for entry in self._from_the_last():
            if entry.position is not None and entry.position < compacted_at:
                continue  # the number of the compaction includes it
            if entry.context_tokens is not None:
                return TokenCount(entry.context_tokens + estimate_tokens(after), bool(after))
            after.append(entry.message)
        if self.compacted is not None and self.compacted.tokens_after is not None:
            return TokenCount(self.compacted.tokens_after + estimate_tokens(after), True)
        return TokenCount(estimate_tokens(self.messages), True)

    def _from_the_last(self) -> Iterator[MessageEntry]:
        """Yield the entries, the last first."""
        for turn in (self.running, *reversed(self.turns)):
            for round_ in reversed(turn.rounds):
                yield from reversed(round_.entries)
            yield from reversed(turn.question)


def turns_of(entries: Iterable[MessageEntry]) -> tuple[Turn, ...]:
    """Return entries of a branch, which are in the order of the log, as turns, in the order of their numbers.

    Each run that begins with a message of the user has a turn of its own, which the runs that resume it continue.
    Another one continues the turn of its number: it adds the results of its calls, or the answer to a question that was
    asked again. Answers that a run has left behind, and that the run which resumes it has asked for again, are in none.
    """
    turns: list[list[MessageEntry]] = []
    by_run: dict[tuple[int, str | None], list[MessageEntry]] = {}
    last: dict[int, list[MessageEntry]] = {}
    for entry in entries:
        key = (entry.turn, _first_run(entry))
        if key not in by_run:
            continued = None if isinstance(entry.message, UserMessage) else last.get(entry.turn)
            if continued is None:
                turns.append([])
            by_run[key] = last[entry.turn] = turns[-1] if continued is None else continued
        by_run[key].append(entry)
    turns.sort(key=lambda entries: entries[0].turn)
    return tuple(_without_superseded(Turn.of(entries)) for entries in turns)


def _without_superseded(turn: Turn) -> Turn:
    """Return a turn without the answers that a run of it has not gone on with, and that a later one has asked again.

    A process that ends right after an answer leaves the answer in the log. The run that resumes it goes on before the
    answer, and none of its calls has begun. A run that goes on with an answer appends the results of its calls first.
    """
    if len(turn.rounds) < 2 or turn.rounds[-1].answer.resumes is None:
        return turn
    rounds: list[Round] = []
    for round_ in reversed(turn.rounds):
        if not rounds or round_.is_gone_on_with or not _is_resumed_by(round_.answer, rounds[-1].answer):
            rounds.append(round_)
    return turn if len(rounds) == len(turn.rounds) else Turn(turn.question, tuple(reversed(rounds)))


def _is_resumed_by(entry: MessageEntry, later: MessageEntry) -> bool:
    """Return whether an entry is of a run that the run of a later entry has resumed."""
    return entry.run_id != later.run_id and later.resumes is not None and _first_run(entry) == _first_run(later)


def _first_run(entry: MessageEntry) -> str | None:
    return entry.resumes or entry.run_id


def _find_round(message: ToolMessage, rounds: Sequence[Round]) -> int:
    """Return the place of the round that results belong to: the last one with one of their calls, else the last one."""
    ids = {part.call_id for part in message.results}
    for place in reversed(range(len(rounds))):
        if any(call.id in ids for call in rounds[place].calls):
            return place
    return len(rounds) - 1


def results_in(entry: MessageEntry) -> Sequence[ToolResultPart]:
    """Return the results in an entry; none if it is another message."""
    return entry.message.results if isinstance(entry.message, ToolMessage) else ()


def _shown_results(entry: MessageEntry, cuts: Cuts) -> Sequence[ToolResultPart]:
    """Return the results in an entry, those that `cuts` has with that number of characters."""
    most, results = cuts.get(entry.id), results_in(entry)
    if most is None:
        return results
    return [_cut(part, most[part.call_id], entry.position) if part.call_id in most else part for part in results]


def is_cut_to(part: ToolResultPart, most: int) -> bool:
    """Return whether a result with `most` characters, and a note on the others, is shorter than all of it."""
    return bool(part.images) or len(part.content) > most + _MOST_NOTE


def _cut(part: ToolResultPart, most: int, position: int | None) -> ToolResultPart:
    """Return a result with its first `most` characters and a reference to the entry that has all of it."""
    size = len(part.content)
    if not is_cut_to(part, most):
        return part
    left_out = [f"{size - most:,} of {size:,} characters"] if size > most else []
    if part.images:
        left_out.append(f"{len(part.images)} images")
    note = f"[left out here: {' and '.join(left_out)}; entry {position} of the conversation has them]"
    return part.replace(content=f"{part.content[:most]}\n{note}", images=())
