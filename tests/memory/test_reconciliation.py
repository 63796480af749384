"""What a run brings is reconciled with what the log has, without a store: new messages, placeholders, waiting turns."""

from __future__ import annotations

import pytest

from traced_tools import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from traced_tools.core import ToolResultPart
from traced_tools.memory import MemoryView, MessageEntry
from traced_tools.memory.entries import LoggedPause
from traced_tools.memory.reconciliation import (
    find_waiting_turn,
    has_content,
    messages_after,
    missing_results,
    rewind,
    split_request,
    waiting_outcomes,
    with_placeholders,
    without_abandoned,
)
from traced_tools.memory.view import Turn, turns_of

HELLO, HI, WHY = UserMessage("Hello"), AssistantMessage("Hi!"), UserMessage("Why?")
PAYS = AssistantMessage([ToolCall("pay", {}, id="c1"), ToolCall("tell", {}, id="c2")])


def results(*ids: str) -> ToolMessage:
    return ToolMessage([ToolResultPart(call_id=call_id, name="pay", content="done") for call_id in ids])


def turns(*messages: Message, run_id: str = "r1", **last: object) -> tuple[Turn, ...]:
    """The turns of a log in which one run has appended these messages; `last` are fields of the last entry."""
    entries = [MessageEntry(message, turn=1, run_id=run_id, agent="desk") for message in messages]
    entries[-1] = entries[-1].replace(**last)
    return turns_of([entry.at("c", position) for position, entry in enumerate(entries, 1)])


@pytest.mark.parametrize(
    ("conversation", "new", "preceding", "request_only"),
    [
        ([WHY], [WHY], (), ()),
        ([HELLO, HI, WHY], [WHY], (), ()),
        ([UserMessage("Before"), HELLO, HI, WHY], [WHY], (UserMessage("Before"),), ()),
        ([UserMessage("Other"), AssistantMessage("!"), WHY], [WHY], (), (UserMessage("Other"), AssistantMessage("!"))),
        ([HELLO, HI], [], (), ()),
    ],
)
def test_only_the_messages_that_the_log_lacks_are_new(
    conversation: list[Message], new: list[Message], preceding: tuple[Message, ...], request_only: tuple[Message, ...]
) -> None:
    assert split_request(MemoryView(turns=turns(HELLO, HI)), conversation) == (new, preceding, request_only)


def test_a_call_without_a_result_gets_a_placeholder_of_the_run_that_made_it() -> None:
    (turn,) = turns(HELLO, PAYS, results("c1"))
    (entry,) = missing_results([turn], [])
    assert (entry.run_id, entry.agent, entry.turn, entry.placeholder) == ("r1", "desk", 1, True)
    assert isinstance(entry.message, ToolMessage)
    assert [part.call_id for part in entry.message.results] == ["c2"]
    assert missing_results([turn], [results("c2")]) == []
    (answered,) = with_placeholders(MemoryView(turns=(turn,)), [entry]).turns
    assert answered.open_calls() == ()


def test_a_call_that_waited_was_not_run_if_its_run_is_withdrawn_and_its_tool_has_not_begun() -> None:
    pause = LoggedPause(keeper="store", begun=("c2",))
    waiting = turns(HELLO, PAYS, results("c1", "c2"), placeholder=True, pause=pause)
    _, not_run = waiting_outcomes(waiting, [WHY], {"r1"})
    assert [call.id for call in not_run] == ["c1"]
    assert waiting_outcomes(waiting, [WHY], set())[1] == []
    assert waiting_outcomes(waiting, [results("c1", "c2")], {"r1"}) == ([], [])


def test_a_run_finds_its_turn_until_another_turn_begins() -> None:
    waiting = turns(HELLO, PAYS, results("c1"), placeholder=True, pause=LoggedPause(keeper="log"))
    later = Turn.of([MessageEntry(WHY, turn=2, run_id="r2").at("c", 4)])
    assert find_waiting_turn(waiting, ["r1"], is_nested=False, is_logged=True) == waiting[0]
    assert find_waiting_turn([*waiting, later], ["r1"], is_nested=False, is_logged=True) is None
    assert find_waiting_turn(waiting, ["r2"], is_nested=False, is_logged=True) is None


def test_a_request_that_is_sent_again_goes_back_to_its_last_known_message() -> None:
    (turn,) = turns(HELLO, PAYS, results("c1"))
    assert messages_after(PAYS, [HELLO, PAYS, results("c1")]) == [results("c1")]
    assert messages_after(HI, [HELLO, PAYS]) is None
    rewound, new_messages = rewind(turn, [HELLO, WHY])
    assert [entry.message for entry in rewound.entries] == [HELLO]
    assert new_messages == [WHY]
    assert rewind(turn, [WHY]) == (turn, [WHY])


def test_an_answer_of_blanks_has_no_content() -> None:
    assert not has_content(AssistantMessage(" \n"))
    assert has_content(UserMessage(" "))
    assert has_content(PAYS)


def lives(*messages: tuple[str, Message]) -> Turn:
    """The turn of a run and of those that resume it; each message has the id of its run."""
    entries = [
        MessageEntry(message, turn=1, run_id=run_id, resumes=None if run_id == "r1" else "r1")
        for run_id, message in messages
    ]
    (turn,) = turns_of([entry.at("c", position) for position, entry in enumerate(entries, 1)])
    return turn


def test_an_answer_that_the_next_life_of_a_run_asks_for_again_is_in_no_turn() -> None:
    again = PAYS.replace(parts=[*PAYS.parts])
    turn = lives(("r1", HELLO), ("r1", HI), ("r1", PAYS), ("r2", again), ("r2", results("c1", "c2")), ("r2", HI))
    assert turn.messages() == (HELLO, again, results("c1", "c2"), HI)
    assert not turn.open_calls()


def test_an_answer_whose_calls_have_results_stays_whichever_life_adds_them() -> None:
    turn = lives(("r1", HELLO), ("r1", PAYS), ("r2", results("c1", "c2")), ("r2", HI))
    assert turn.messages() == (HELLO, PAYS, results("c1", "c2"), HI)


def test_a_run_goes_on_without_the_answers_behind_the_one_that_it_goes_on_with() -> None:
    more = AssistantMessage([ToolCall("pay", {}, id="c3")])
    turn = lives(("r1", HELLO), ("r1", PAYS), ("r1", results("c1", "c2")), ("r1", more))
    left, kept = (without_abandoned(turn, [PAYS, *last], [HELLO]) for last in ((results("c1", "c2"),), (more,)))
    assert (left.messages(), kept) == ((HELLO, PAYS, results("c1", "c2")), turn)
    assert without_abandoned(lives(("r1", HELLO), ("r1", PAYS)), [], [HELLO]).messages() == (HELLO,)
    assert without_abandoned(lives(("r1", HELLO), ("r1", HI)), [], [HELLO]).messages() == (HELLO,)


def test_a_run_keeps_an_answer_that_an_advisor_sends_back() -> None:
    turn = lives(("r1", HELLO), ("r1", HI), ("r1", WHY))
    assert without_abandoned(turn, [], [HELLO, HI, WHY]) == turn


def test_an_answer_that_repeats_the_ids_of_one_before_is_left_behind() -> None:
    turn = lives(("r1", HELLO), ("r1", PAYS), ("r1", results("c1", "c2")), ("r1", PAYS))
    settled = (HELLO, PAYS, results("c1", "c2"))
    assert without_abandoned(turn, [PAYS, results("c1", "c2")], [HELLO]).messages() == settled
    assert without_abandoned(turn, [PAYS, results("c1", "c2"), PAYS], [HELLO]) == turn
