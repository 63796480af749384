"""Which turns Gemini is sent where a conversation does not go back and forth as it wants."""

from __future__ import annotations

from tests.models.gemini.test_requests import DOT, NOT_SIGNED, SENT_DOT, answer, encoded, parts_of, result, turns
from traced_tools import SystemMessage, TextPart, ToolCall, ToolMessage, UserMessage


def test_a_text_with_nothing_in_it_is_left_out_because_gemini_refuses_it() -> None:
    body = encoded(SystemMessage(""), UserMessage([TextPart(""), DOT]))
    assert body == {"contents": [{"role": "user", "parts": [SENT_DOT]}]}


def test_answers_without_a_word_of_the_users_between_them_are_one_turn() -> None:
    said = turns(
        answer(TextPart("a")), SystemMessage("be kind"), UserMessage(""), answer(ToolCall("weather", signature="s"))
    )
    assert [(role, [*map(list, parts)]) for role, parts in said] == [
        ("model", [["text"], ["functionCall", "thoughtSignature"]])
    ]


def test_a_batch_whose_results_are_parted_by_instructions_is_one_turn() -> None:
    calls = answer(ToolCall("weather", id="c1"), ToolCall("weather", id="c2"))
    said = turns(calls, ToolMessage([result("c1")]), SystemMessage("be kind"), ToolMessage([result("c2")]))
    assert [(role, len(parts)) for role, parts in said] == [("model", 2), ("user", 2)]


def test_a_call_of_an_older_model_says_to_a_newer_one_that_it_is_not_signed() -> None:
    older = answer(TextPart("a", signature="s"), ToolCall("weather"), provider="gcp.gemini")
    assert parts_of(older)[1]["thoughtSignature"] == NOT_SIGNED
