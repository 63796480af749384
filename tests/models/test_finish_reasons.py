"""Why a model stopped: states that are no answer are errors, whole and streamed, for every provider."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from tests import modes
from tests.models.test_refusals import SAMPLE_OF, body_with
from tests.modes import MODES
from tests.sweeps import check_each, sweep
from traced_tools import AssistantMessage, ChatClient, ChatClientResponse, ToolCall
from traced_tools.errors import InvalidResponse
from traced_tools.models import ChatResponse
from traced_tools.testing import ReplayServer, Reply, ScriptedChatModel, capture_telemetry


def chat(text: str, reason: str | None, mode: str) -> Any:
    kind = "delta" if "stream" in mode else "message"
    return {"choices": [{"index": 0, kind: {"content": text}, "finish_reason": reason}]}


def gemini(text: str, reason: str | None, mode: str) -> Any:
    content = {"role": "model", "parts": [{"text": text}]} if text else {}
    return {"candidates": [{"content": content, "finishReason": reason}], "usageMetadata": {"promptTokenCount": 9}}


def ollama(text: str, reason: str | None, mode: str) -> Any:
    return {"message": {"role": "assistant", "content": text}, "done": True, "done_reason": reason}


def responses(text: str, reason: str | None, mode: str) -> Any:
    message = {"type": "message", "content": [{"type": "output_text", "text": text}]}
    answer = {"status": "incomplete", "incomplete_details": {"reason": reason}, "output": [message] if text else []}
    return {"type": "response.incomplete", "response": answer} if "stream" in mode else answer


BODIES = {
    "OpenAIChatModel": chat,
    "GeminiChatModel": gemini,
    "OllamaChatModel": ollama,
    "OpenAIResponsesModel": responses,
}
FAILED = {
    "OpenAIChatModel": (
        "error",
        "insufficient_system_resource",
        "abort",
        "network_error",
        "function_call_filter: MALFORMED_FUNCTION_CALL",
    ),
    "GeminiChatModel": (
        "MALFORMED_FUNCTION_CALL",
        "UNEXPECTED_TOOL_CALL",
        "TOO_MANY_TOOL_CALLS",
        "MALFORMED_RESPONSE",
        "MISSING_THOUGHT_SIGNATURE",
    ),
    "OpenAIResponsesModel": ("a_reason_of_tomorrow",),
}


def ask(sample: str, text: str, reason: str | None, mode: str, **settings: Any) -> ChatClientResponse:
    with ReplayServer([body_with(SAMPLE_OF[sample], BODIES[sample](text, reason, mode), mode)]) as server:
        model = SAMPLE_OF[sample].model_at(server.url)
        return modes.run(mode, ChatClient(model, **settings).prompt("?"), model)


@sweep(sample=FAILED, mode=MODES)
def test_an_answer_that_failed_is_an_error(sample: str, mode: str) -> None:
    def check(reason: str) -> None:
        for text in ("", "Half an ans"):
            with capture_telemetry() as captured, pytest.raises(InvalidResponse, match="failed") as caught:
                ask(sample, text, reason, mode, telemetry=captured.options)
            assert caught.value.retryable
            assert caught.value.streamed is ("stream" in mode and bool(text))
            assert caught.value.code == (reason if ":" not in reason else None)
            assert {span.status.status_code.name for span in captured.spans if span.name == "chat m"} == {"ERROR"}

    check_each(FAILED[sample], check)


@sweep(sample=["OpenAIChatModel", "GeminiChatModel", "OllamaChatModel"], mode=MODES)
def test_an_unknown_reason_ends_an_answer_that_has_content(sample: str, mode: str) -> None:
    response = ask(sample, "All of it.", "A_REASON_OF_TOMORROW", mode)
    assert (response.content, response.finish_reason, response.stop_reason) == ("All of it.", "other", "answered")
    assert response.chat_response is not None
    assert response.chat_response.provider_reason == "A_REASON_OF_TOMORROW"
    with pytest.raises(InvalidResponse, match=r"empty.*A_REASON_OF_TOMORROW"):
        ask(sample, "", "A_REASON_OF_TOMORROW", mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("reason", "expected"),
    [("end_turn", "stop"), ("max_tokens", "length"), ("STOP", "stop"), ("content_filter: SPII", "content_filter")],
)
def test_reasons_of_other_apis_that_gateways_pass_on_are_known(mode: str, reason: str, expected: str) -> None:
    assert ask("OpenAIChatModel", "Hi.", reason, mode).finish_reason == expected


@pytest.mark.parametrize("mode", MODES)
def test_the_calls_of_an_answer_that_failed_do_not_run(mode: str) -> None:
    called: list[int] = []

    def pay() -> str:
        """Pay."""
        called.append(1)
        return "paid"

    answer = ChatResponse(AssistantMessage(tool_calls=[ToolCall("pay")]), finish_reason="error")
    with pytest.raises(InvalidResponse):
        modes.run(mode, ChatClient(ScriptedChatModel([answer]), tools=[pay]).prompt("?"))
    assert called == []


@pytest.mark.parametrize("mode", MODES)
def test_an_answer_that_failed_still_counts_its_tokens(mode: str) -> None:
    with capture_telemetry() as captured, pytest.raises(InvalidResponse):
        ask("GeminiChatModel", "", "MALFORMED_FUNCTION_CALL", mode, telemetry=captured.options)
    (chat_span,) = [span for span in captured.spans if span.name == "chat m"]
    assert dict(chat_span.attributes or {})["gen_ai.usage.input_tokens"] == 9


@pytest.mark.parametrize(
    ("sample", "reason"),
    [*product(("OpenAIChatModel", "OllamaChatModel"), ("", None)), ("GeminiChatModel", "")],
)
def test_an_empty_reason_is_the_same_whole_and_streamed(sample: str, reason: str | None) -> None:
    def outcome(mode: str) -> Any:
        body = BODIES[sample]("Hi.", reason, mode)
        reply = body_with(SAMPLE_OF[sample], body, mode)
        if sample == "OpenAIChatModel" and "stream" in mode:
            reply = Reply.sse([body, "[DONE]"])
        with ReplayServer([reply]) as server:
            model = SAMPLE_OF[sample].model_at(server.url)
            response = modes.run(mode, ChatClient(model).prompt("?"), model)
        return response.content, response.finish_reason

    assert {outcome(mode) for mode in MODES} == {("Hi.", None)}
