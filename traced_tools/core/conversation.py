"""The tool calls of a conversation and their results."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from traced_tools.core.messages import AssistantMessage, Message, ToolCall, ToolMessage, ToolResultPart, UserMessage

MADE_UP_ID: Final = "ttcall_"
"""The prefix of a call id that this package generated because the provider sent none."""
NOT_RUN: Final = "The call was not run: "
"""Prefix of the result of a refused call."""
UNKNOWN_OUTCOME: Final = "The outcome of the call is unknown, and it may have run: "
"""Prefix of the result of a call whose tool may have begun."""
_NO_RESULT: Final = f"{UNKNOWN_OUTCOME}the conversation went on without its result."

Exchange = tuple[tuple[ToolCall, ...], list[ToolResultPart | None]]
"""The calls of one answer, and the result of each call or None."""


class CheckedConversation(NamedTuple):
    """A conversation in which each call has a result.

    Attributes:
        messages: the conversation.
        is_paired: whether each result also directly follows its call.
    """

    messages: tuple[Message, ...]
    is_paired: bool

    def begins(self, conversation: tuple[Message, ...]) -> bool:
        """Return whether a conversation begins with this one.

        What was checked then holds for its beginning, because messages never change, and because no call at the end of
        this conversation waits for a result.
        """
        size = len(self.messages)
        if not 0 < size <= len(conversation) or conversation[size - 1] is not self.messages[-1]:
            return False
        return conversation[:size] == self.messages


NOTHING_CHECKED: Final = CheckedConversation((), True)


def with_results(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the conversation with a result for each call: a call without one gets a result of unknown outcome.

    Providers reject a conversation in which a call has no result. Only results directly after the calls count. If no
    result is missing, the same tuple is returned.
    """
    completed: list[Message] = []
    after = 0  # index of the first message that is not in `completed`
    for index, message in enumerate(messages):
        if not isinstance(message, AssistantMessage) or not message.tool_calls:
            continue
        calls, end = message.tool_calls, _end_of_results(messages, index)
        results = _get_results(messages[index + 1 : end])
        if [call.id for call in calls] == [result.call_id for result in results]:  # the common case
            continue
        answers = answers_to(calls, results)
        if None in answers:
            paired_ids = {id(answer) for answer in answers}
            strays = [result for result in results if id(result) not in paired_ids]
            complete = [answer or _unknown_result(call) for call, answer in zip(calls, answers, strict=True)]
            completed += [*messages[after : index + 1], ToolMessage([*complete, *strays])]
            after = end
    return (*completed, *messages[after:]) if completed else messages


def with_paired_results(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return a conversation that `with_results` returned, in which each result directly follows its call.

    Providers reject a conversation with a result elsewhere. A result before its call, or after a later message, moves
    to the call. A result without a call, and a second result of a call, are omitted, unless the conversation has only
    results, whose calls the server may have. A call without an id, or with that of another call of its answer, gets
    one. If nothing changes, the same tuple is returned.
    """
    if are_paired(messages) or all(message.role in ("system", "tool") for message in messages):
        return messages
    exchanges = _exchanges(messages)
    loose = _loose_results(messages, exchanges.values())
    paired: list[Message] = []
    for index, message in enumerate(messages):
        if not isinstance(message, ToolMessage):
            paired.append(message)
        if index in exchanges:
            calls, answers = exchanges[index]
            strays = [
                _take_loose(loose, call, index, answer) or answer or _unknown_result(call)
                for call, answer in zip(calls, answers, strict=True)
            ]
            paired[-1:] = _with_ids(paired[-1], index, strays)
    return tuple(paired)


def _exchanges(messages: Sequence[Message]) -> dict[int, Exchange]:
    """Return the calls of each answer by its place, with the results directly after it that are theirs."""
    exchanges: dict[int, Exchange] = {}
    for index, message in enumerate(messages):
        if isinstance(message, AssistantMessage) and message.tool_calls:
            results = _get_results(messages[index + 1 : _end_of_results(messages, index)])
            exchanges[index] = message.tool_calls, answers_to(message.tool_calls, results)
    return exchanges


def _loose_results(messages: Sequence[Message], exchanges: Iterable[Exchange]) -> list[tuple[int, ToolResultPart]]:
    """Return the results that no call directly before them has, with the places of their messages."""
    paired_ids = {id(answer) for _, answers in exchanges for answer in answers}
    loose: list[tuple[int, ToolResultPart]] = []
    for index, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            loose += [(index, result) for result in message.results if id(result) not in paired_ids]
    return loose


def _with_ids(answer: Message, index: int, results: Sequence[ToolResultPart]) -> tuple[Message, Message]:
    """Return an answer and the results of its calls, in which each call has an id of its own.

    Args:
        answer: the answer.
        index: its place in the conversation. A generated id contains it, so that the next request has the same id.
        results: the results, in the order of the calls.
    """
    assert isinstance(answer, AssistantMessage)
    ids: list[str] = []
    for place, call in enumerate(answer.tool_calls):
        ids.append(call.id if call.id and call.id not in ids else f"{MADE_UP_ID}{index}_{place}")
    if ids != [call.id for call in answer.tool_calls]:
        remaining_ids = iter(ids)
        parts = [part.replace(id=next(remaining_ids)) if isinstance(part, ToolCall) else part for part in answer.parts]
        answer = answer.replace(parts=parts)
    return answer, ToolMessage([part.replace(call_id=ids[place]) for place, part in enumerate(results)])


def are_paired(messages: Sequence[Message]) -> bool:
    """Return whether each result is in a message directly after its call, in the order of the calls, which have ids."""
    calls: tuple[ToolCall, ...] = ()
    for message in messages:
        if message.role == "tool":
            if [result.call_id for result in message.results] != [call.id for call in calls]:
                return False
            calls = ()
        elif message.role == "assistant":
            calls = message.tool_calls
            if len(calls) == 1 and not calls[0].id:
                return False
            if len(calls) > 1 and (not all(ids := [call.id for call in calls]) or len(set(ids)) < len(ids)):
                return False
        else:
            calls = ()
    return True


def _take_loose(
    loose: list[tuple[int, ToolResultPart]], call: ToolCall, index: int, answer: ToolResultPart | None
) -> ToolResultPart | None:
    """Remove and return the result of a call from the loose ones: the next after the call, or the last before it.

    Args:
        loose: the places of the messages with results that no call before them has, and the results.
        call: the call.
        index: the place of the message with the call.
        answer: the result that the call has; None is returned if it is more than the text that there was none.
    """
    if not call.id or (answer is not None and answer.content != _NO_RESULT):
        return None
    fitting = [entry for entry in loose if (entry[1].call_id, entry[1].name) == (call.id, call.name)]
    if not fitting:
        return None
    nearest = next((entry for entry in fitting if entry[0] > index), fitting[-1])
    loose.remove(nearest)
    return nearest[1]


def open_calls(messages: Sequence[Message]) -> tuple[ToolCall, ...]:
    """Return the calls of a conversation that have no result directly after them."""
    unanswered: list[ToolCall] = []
    for index, message in enumerate(messages):
        if isinstance(message, AssistantMessage) and message.tool_calls:
            results = _get_results(messages[index + 1 : _end_of_results(messages, index)])
            answers = answers_to(message.tool_calls, results)
            unanswered += [call for call, answer in zip(message.tool_calls, answers, strict=True) if answer is None]
    return tuple(unanswered)


def answers_to(calls: Iterable[ToolCall], results: Sequence[ToolResultPart]) -> list[ToolResultPart | None]:
    """Return the result of each call: the one with its id, or for a call without an id the next unused result."""
    by_id: defaultdict[str, deque[ToolResultPart]] = defaultdict(deque)
    for result in results:
        by_id[result.call_id].append(result)
    pairs = [(call, by_id[call.id].popleft() if call.id and by_id[call.id] else None) for call in calls]
    unused = {id(result) for waiting in by_id.values() for result in waiting}
    remaining = iter([result for result in results if id(result) in unused])
    return [next(remaining, None) if result is None and not call.id else result for call, result in pairs]


def exchanges_of_run(messages: Sequence[Message]) -> Iterator[Exchange]:
    """Yield the calls since the last user message and their results, one exchange per answer."""
    places = [index for index, message in enumerate(messages) if isinstance(message, UserMessage)]
    for index in range(places[-1] + 1 if places else 0, len(messages)):
        message = messages[index]
        if isinstance(message, AssistantMessage) and message.tool_calls:
            results = _get_results(messages[index + 1 : _end_of_results(messages, index)])
            yield message.tool_calls, answers_to(message.tool_calls, results)


def _end_of_results(messages: Sequence[Message], index: int) -> int:
    """Return the end index of the tool messages that directly follow the message at `index`."""
    end = index + 1
    while end < len(messages) and isinstance(messages[end], ToolMessage):
        end += 1
    return end


def _get_results(messages: Iterable[Message]) -> list[ToolResultPart]:
    return [result for message in messages if isinstance(message, ToolMessage) for result in message.results]


def _unknown_result(call: ToolCall) -> ToolResultPart:
    return ToolResultPart(call_id=call.id or "", name=call.name, content=_NO_RESULT, is_error=True)
