"""The turns sent to Gemini for conversations that don't alternate as it requires."""

from __future__ import annotations

from tests.models.gemini.test_requests import DOT, NOT_SIGNED, SENT_DOT, answer, encoded, parts_of, result, turns
from traced_tools import SystemMessage, TextPart, ToolCall, ToolMessage, UserMessage


def test_an_empty_text_is_omitted_because_gemini_refuses_it() -> None:
    body = encoded(SystemMessage(""), UserMessage([TextPart(""), DOT]))
    assert body == {"contents": [{"role": "user", "parts": [SENT_DOT]}]}


def test_consecutive_answers_are_one_turn() -> None:
    said = turns(
        answer(TextPart("a")), SystemMessage("be kind"), UserMessage(""), answer(ToolCall("weather", signature="s"))
    )
    assert [(role, [*map(list, parts)]) for role, parts in said] == [
        ("model", [["text"], ["functionCall", "thoughtSignature"]])
    ]


def test_results_separated_by_a_system_message_are_one_turn() -> None:
    calls = answer(ToolCall("weather", id="c1"), ToolCall("weather", id="c2"))
    said = turns(calls, ToolMessage([result("c1")]), SystemMessage("be kind"), ToolMessage([result("c2")]))
    assert [(role, len(parts)) for role, parts in said] == [("model", 2), ("user", 2)]


def test_an_unsigned_call_of_an_older_model_gets_a_placeholder_signature_for_a_newer_one() -> None:
    older = answer(TextPart("a", signature="s"), ToolCall("weather"), provider="gcp.gemini")
    assert parts_of(older)[1]["thoughtSignature"] == NOT_SIGNED
