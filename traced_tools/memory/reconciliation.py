"""Reconciles what a run brings with what the log of its conversation has, without reading or writing anything.

A caller may pass one question or the whole conversation, which the log has already, in part, or with other tool calls.
Runs before may have ended between a call and its result, or wait for a decision. What follows from that is decided
here: which messages are new, which calls get a placeholder, which runs wait, and which turn a resumed run continues.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

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
    UserMessage,
)
from traced_tools.memory.entries import LoggedPause, MessageEntry
from traced_tools.memory.view import MemoryView, Round, Turn, turns_of

_WAITING: Final = f"{UNKNOWN_OUTCOME}its run ended while it waited for a decision."
_WITHDRAWN: Final = f"{NOT_RUN}it waited for approval, and the conversation went on."
_MAY_HAVE_RESUMED: Final = f"{UNKNOWN_OUTCOME}it waited for approval, and a run may have resumed with it."
_NOT_ANSWERED: Final = f"{UNKNOWN_OUTCOME}it waited for a decision, and the conversation went on."
_BEGUN: Final = f"{UNKNOWN_OUTCOME}a run resumed with it, and ended before its result was recorded."
_UNKNOWN: Final = f"{UNKNOWN_OUTCOME}the run ended before its result was recorded."

# Which messages are new.


def split_request(
    view: MemoryView, conversation: Sequence[Message]
) -> tuple[Sequence[Message], tuple[Message, ...], tuple[Message, ...]]:
    """Return the messages to append, and those to send with this request only: before the view, and after it.

    Messages of the view are not appended again. If the conversation does not continue the view, only the last message
    of the user and the messages after it are appended.
    """
    if _is_only_question(view, conversation):  # the common case: nothing is compared
        return conversation, (), ()
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


def _is_only_question(view: MemoryView, conversation: Sequence[Message]) -> bool:
    """Return whether a caller passes only the next question, after a turn with an answer."""
    if len(conversation) != 1 or not isinstance(conversation[0], UserMessage):
        return False
    return not view.running.size and bool(view.turns) and view.turns[-1].is_answered


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


def begins_with_results(turn: Turn, conversation: Sequence[Message]) -> bool:
    """Return whether a conversation begins with the results of the last answer of a turn, which has none of them."""
    last = turn.rounds[-1] if turn.rounds else None
    results = conversation[0] if conversation else None
    if last is None or last.following or not last.calls or not isinstance(results, ToolMessage):
        return False
    return [part.call_id for part in results.results] == [call.id for call in last.calls]


def messages_after(last: Message | None, conversation: Sequence[Message]) -> Sequence[Message] | None:
    """Return what follows the last message that a run added; None if the conversation does not have it."""
    for index in reversed(range(len(conversation))):
        if last is not None and _is_same(conversation[index], last):
            return conversation[index + 1 :]
    return None


def _is_same(message: Message, original: Message) -> bool:
    """Return whether a message is the original one, even if an advisor has changed the text beside its calls."""
    if isinstance(message, AssistantMessage) and isinstance(original, AssistantMessage) and original.tool_calls:
        return [call.id for call in message.tool_calls] == [call.id for call in original.tool_calls]
    return message == original


def rewind(turn: Turn, conversation: Sequence[Message]) -> tuple[Turn, Sequence[Message]]:
    """Return a turn up to its last message that a conversation has, and what follows that message in the conversation.

    If the conversation has no message of the turn, the turn stays, and the messages after the last answer are new.
    """
    entries = turn.entries
    for index in reversed(range(len(conversation))):
        for place in reversed(range(len(entries))):
            if conversation[index] == entries[place].message:
                return Turn.of(entries[: place + 1]), conversation[index + 1 :]
    answers = [index for index, message in enumerate(conversation) if isinstance(message, AssistantMessage)]
    return turn, conversation[answers[-1] + 1 :] if answers else conversation


def has_content(message: Message) -> bool:
    """Return whether a provider accepts a message: an answer must have more than reasoning and blank texts."""
    if not isinstance(message, AssistantMessage):
        return True
    return any(
        part.text.strip() if isinstance(part, TextPart) else not isinstance(part, ReasoningPart)
        for part in message.parts
    )


# Which calls get a placeholder, so that no call that a model is sent is without a result.


def missing_results(turns: Iterable[Turn], new_messages: Iterable[Message]) -> list[MessageEntry]:
    """Return placeholders for the calls of ended runs that have no result, unless `new_messages` has it."""
    answered_ids = _answered_ids(new_messages)
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


def waiting_outcomes(
    turns: Iterable[Turn], new_messages: Iterable[Message], withdrawn_ids: Container[str | None]
) -> tuple[list[MessageEntry], list[ToolCall]]:
    """Return placeholders for the calls that waited when a run began, and those of the calls that never run.

    Args:
        turns: the turns before the run.
        new_messages: the new messages of the run, which may have results of the calls.
        withdrawn_ids: the runs that wait and never resume.
    """
    answered_ids = _answered_ids(new_messages)
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
                if call.id in entry.pause.begun:  # its tool has run up to a question, and may have changed something
                    text = _NOT_ANSWERED
                if text is _WITHDRAWN:
                    not_run.append(call)
                parts.append(ToolResultPart(call_id=call.id or "", name=call.name, content=text, is_error=True))
            if parts:
                entries.append(_placeholder(round_, parts))
    return entries, not_run


def _answered_ids(new_messages: Iterable[Message]) -> set[str]:
    return {part.call_id for message in new_messages if isinstance(message, ToolMessage) for part in message.results}


def _placeholder(round_: Round, parts: Sequence[ToolResultPart]) -> MessageEntry:
    """Return an entry for results that never arrived, in the name of the run that made the calls."""
    place = {name: getattr(round_.answer, name) for name in ("turn", "run_id", "branch", "agent")}
    return MessageEntry(ToolMessage(parts), placeholder=True, **place)


def with_placeholders(view: MemoryView, placeholders: Sequence[MessageEntry]) -> MemoryView:
    """Return a view whose calls have the results of some placeholders."""
    if not placeholders:
        return view
    turns = turns_of([*entries_of(turns_with_running(view)), *placeholders])
    if not view.running.size:
        return replace(view, turns=turns)
    *earlier, running = turns
    return replace(view, turns=tuple(earlier), running=running)


def turns_with_running(view: MemoryView) -> tuple[Turn, ...]:
    """Return the turns of a view, with the one that a resumed run goes on with."""
    return (*view.turns, view.running) if view.running.size else view.turns


def waiting_results(pending: Iterable[PendingCall]) -> ToolMessage:
    """Return what the model reads of calls that wait, until their results or an outcome replace it."""
    return ToolMessage(
        [ToolResultPart(call_id=call.call_id, name=call.tool, content=_WAITING, is_error=True) for call in pending]
    )


def begun_results(turn: Turn) -> ToolMessage | None:
    """Return what the model reads of the calls of a turn that wait and now begin; None if no call of it waits."""
    parts = [
        ToolResultPart(call_id=call.id or "", name=call.name, content=_BEGUN, is_error=True)
        for round_ in turn.rounds
        for call in round_.calls
        if call.id in round_.waiting_calls()
    ]
    return ToolMessage(parts) if parts else None


# Which runs wait, and which turn a run goes on with.


def waiting_runs(turns: Iterable[Turn]) -> Mapping[str | None, LoggedPause | None]:
    """Return the runs whose calls wait in some turns, each with what the log says of its pause."""
    return {
        entry.run_id: entry.pause
        for turn in turns
        for round_ in turn.rounds
        for entry in round_.waiting_calls().values()
    }


def unanswered_runs(turns: Sequence[Turn], new_messages: Iterable[Message]) -> list[str | None]:
    """Return the runs of the last turn if it has no answer and the new messages leave it behind.

    Such a run may wait although the log has none of its calls, because the memory was down when it paused.
    """
    if not turns or turns[-1].is_answered:
        return []
    entries = turns[-1].entries
    is_left_behind = any(isinstance(message, UserMessage) for message in new_messages)
    waits = any(entry.pause is not None for entry in entries)
    return [entry.run_id for entry in entries] if is_left_behind or waits else []


def find_waiting_turn(
    turns: Sequence[Turn], run_ids: Sequence[str], *, is_nested: bool, is_logged: bool
) -> Turn | None:
    """Return the turn in which a run waits; None if it waits in none of them, or another turn has begun since then.

    Args:
        turns: the last turns of the log.
        run_ids: the ids of the run, and before it those of the runs that it resumed.
        is_nested: whether an outer agent has asked for the run. It may have asked for others in the same turn.
        is_logged: whether only the log decides which run resumes. A placeholder without a pause then says that one has.
    """
    for turn in turns:
        last = max(turn.entries, key=_position)
        if last.pause is not None and last.run_id == run_ids[-1]:
            return None if _has_gone_on(turns, turn, last, is_nested=is_nested) else turn
    if is_nested:
        turns = [turn for turn in turns if turn.number != turns[-1].number or turn.last.run_id in run_ids]
    if not turns or turns[-1].last.run_id not in run_ids:
        return None
    # the run could not record that it paused, because the memory was down
    last = turns[-1].last
    return None if is_logged and last.placeholder and last.pause is None else turns[-1]


def _has_gone_on(turns: Sequence[Turn], turn: Turn, last: MessageEntry, *, is_nested: bool) -> bool:
    """Return whether another turn has begun since the last entry of a turn; see `find_waiting_turn`."""
    others = [other for other in turns if not (is_nested and other.number == turn.number)]
    return any(min(map(_position, other.entries)) > _position(last) for other in others)


def with_running_turn(view: MemoryView, turn: Turn) -> MemoryView:
    """Return a view with a turn as the running one, without the entries that a compaction of the view covers."""
    entries, compaction = turn.entries, view.compacted
    if compaction is not None:
        kept_ids = {*compaction.keeps}
        entries = tuple(entry for entry in entries if _position(entry) > compaction.through or entry.id in kept_ids)
    ids = {entry.id for entry in turn.entries}
    turns = tuple(other for other in view.turns if ids.isdisjoint(entry.id for entry in other.entries))
    return replace(view, turns=turns, running=Turn.of(entries))


def without_abandoned(turn: Turn, messages: Sequence[Message], conversation: Sequence[Message]) -> Turn:
    """Return the turn of a run that resumes without the answers that it does not go on with.

    A process that ends right after an answer leaves the answer in the log, and the next one asks the model again.

    Args:
        turn: the turn in the log.
        messages: what the run has added to its request, up to the answer that it goes on with, and results of it.
        conversation: what the run is asked to send, with the answers that an advisor has sent back.
    """
    size = max((place for place, round_ in enumerate(turn.rounds, 1) if round_.is_gone_on_with), default=0)
    answers = [message for message in messages if isinstance(message, AssistantMessage) and message.tool_calls]
    if answers:
        # Some providers repeat the ids of calls, so an answer that the run has left may look like one with results.
        places = [place for place, round_ in enumerate(turn.rounds, 1) if _is_same(round_.answer.message, answers[-1])]
        alike = sum(_is_same(answer, answers[-1]) for answer in answers)
        if places and sum(place <= size for place in places) < alike:
            size = max(size, places[-1])
    attempts = messages_after(turn.question[0].message, conversation) if turn.question else None
    while size < len(turn.rounds) and turn.rounds[size].answer.message in (attempts or ()):
        size += 1
    return turn if size == len(turn.rounds) else Turn(turn.question, turn.rounds[:size])


def without_siblings(turns: Sequence[Turn], number: int, running: Turn) -> tuple[Turn, ...]:
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


def entries_of(turns: Iterable[Turn]) -> Iterator[MessageEntry]:
    """Yield the entries of turns, in order."""
    return (entry for turn in turns for entry in turn.entries)


def _position(entry: MessageEntry) -> int:
    return entry.position or 0
