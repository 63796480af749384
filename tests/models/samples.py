"""One tool loop in the format of each provider, handwritten: two calls at once beside a text, then closing words.

reasoning "Two cities.", text "I look.", calls weather(Oslo) and weather(Bergen); usage 10 in (4 of them cached), 7 out
text "Rain in both."; usage 30 in, 5 out
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

from traced_tools import ToolCall, Usage
from traced_tools.models import (
    AnthropicChatModel,
    GeminiChatModel,
    OllamaChatModel,
    OpenAIChatModel,
    OpenAIResponsesModel,
)
from traced_tools.models.http.model import HttpChatModel
from traced_tools.models.http.options import HttpOptions

REASONING, TEXT, CLOSING = "Two cities.", "I look.", "Rain in both."
CITIES = ("Oslo", "Bergen")
NAME = "weather"


@dataclass(frozen=True)
class Answer:
    """One answer: the body of a whole one, and the events of a streamed one."""

    whole: Any
    events: Sequence[Any]


@dataclass(frozen=True)
class Sample:
    """A provider's language.

    Args:
        kind: the class of its model.
        asking: the first answer.
        closing: the second.
        has_ids: whether calls have ids.
        content_type: of a stream.
        arguments: what else the model is made with.
    """

    kind: type[Any]
    asking: Answer
    closing: Answer
    has_ids: bool = True
    content_type: str = "text/event-stream"
    arguments: dict[str, Any] = field(default_factory=dict)

    def model_at(self, url: str, **http: Unpack[HttpOptions]) -> HttpChatModel:
        """Return the provider's model, whose API is at `url`."""
        model: HttpChatModel = self.kind("m", base_url=url, api_key="k", **{"retries": 0, **self.arguments, **http})
        return model

    def body(self, answer: Answer, *, streamed: bool) -> bytes:
        """Return an answer's bytes."""
        if not streamed:
            return json.dumps(answer.whole).encode()
        texts = [event if isinstance(event, str) else json.dumps(event) for event in answer.events]
        framed = "{}\n" if self.content_type == "application/x-ndjson" else "data: {}\n\n"
        return "".join(framed.replace("{}", text) for text in texts).encode("utf-8", "surrogatepass")

    def __repr__(self) -> str:
        return self.kind.__name__


def calls(ids: Sequence[str | None] = ("c1", "c2")) -> tuple[ToolCall, ...]:
    """Return the calls that each first answer holds."""
    return tuple(ToolCall(NAME, {"city": city}, call_id) for city, call_id in zip(CITIES, ids, strict=True))


USAGE = (
    Usage(input_tokens=10, output_tokens=7, cache_read_tokens=4),
    Usage(input_tokens=30, output_tokens=5),
)
"""What the two answers report; a provider may report further counts."""


def _json(city: str) -> str:
    return json.dumps({"city": city})


def _openai() -> Sample:
    def body(key: str, said: Any, reason: str | None, usage: Any = None) -> dict[str, Any]:
        choices = [] if said is None else [{"index": 0, key: said, "finish_reason": reason}]
        return {"id": "a1", "model": "m-1", "choices": choices, "usage": usage}

    def call(index: int, arguments: str) -> dict[str, Any]:
        function = {"name": NAME, "arguments": arguments}
        return {"index": index, "id": f"c{index + 1}", "type": "function", "function": function}

    def piece(index: int, arguments: str) -> dict[str, Any]:
        return {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}

    used = {"prompt_tokens": 10, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}}
    closing = {"prompt_tokens": 30, "completion_tokens": 5}
    both = [call(index, _json(city)) for index, city in enumerate(CITIES)]
    said = {"role": "assistant", "reasoning": REASONING, "content": TEXT, "tool_calls": both}
    deltas: list[dict[str, Any]] = [{"reasoning": REASONING[:4]}, {"reasoning": REASONING[4:]}, {"content": TEXT}]
    for index, city in enumerate(CITIES):
        deltas += [{"tool_calls": [call(index, "")]}, piece(index, _json(city)[:6]), piece(index, _json(city)[6:])]
    return Sample(
        OpenAIChatModel,
        Answer(
            body("message", said, "tool_calls", used),
            [
                *(body("delta", delta, None) for delta in deltas),
                body("delta", {}, "tool_calls"),
                body("delta", None, None, used),
                "[DONE]",
            ],
        ),
        Answer(
            body("message", {"role": "assistant", "content": CLOSING}, "stop", closing),
            [
                *(body("delta", {"content": piece}, None) for piece in (CLOSING[:5], CLOSING[5:])),
                body("delta", {}, "stop", closing),
                "[DONE]",
            ],
        ),
    )


def _responses() -> Sample:
    def body(status: str, output: list[Any], used: tuple[int, int, int] | None) -> dict[str, Any]:
        whole: dict[str, Any] = {"id": "a1", "model": "m-1", "status": status, "error": None, "output": output}
        if used is not None:
            details = {"input_tokens_details": {"cached_tokens": used[2]}}
            whole["usage"] = {"input_tokens": used[0], "output_tokens": used[1], **details}
        return whole

    def message(text: str) -> dict[str, Any]:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}

    thought = {"type": "reasoning", "id": "rs_1", "encrypted_content": "sealed"}
    thought["summary"] = [{"type": "summary_text", "text": REASONING}]  # type: ignore[assignment]
    both = [
        {"type": "function_call", "id": f"fc_{n}", "call_id": f"c{n}", "name": NAME, "arguments": _json(city)}
        for n, city in enumerate(CITIES, start=1)
    ]

    def event(kind: str, index: int, **fields: Any) -> dict[str, Any]:
        return {"type": f"response.{kind}", "output_index": index, **fields}

    def streamed_message(index: int, text: str) -> list[dict[str, Any]]:
        return [
            event("output_item.added", index, item={**message(text), "content": []}),
            event("content_part.added", index, content_index=0, part={"type": "output_text", "text": ""}),
            *(event("output_text.delta", index, content_index=0, delta=piece) for piece in (text[:3], text[3:])),
            event("output_text.done", index, content_index=0, text=text),
            event("content_part.done", index, content_index=0, part=message(text)["content"][0]),
            event("output_item.done", index, item=message(text)),
        ]

    def streamed_call(index: int, item: dict[str, Any]) -> list[dict[str, Any]]:
        arguments = item["arguments"]
        return [
            event("output_item.added", index, item={**item, "arguments": ""}),
            *(event("function_call_arguments.delta", index, delta=p) for p in (arguments[:6], arguments[6:])),
            event("function_call_arguments.done", index, arguments=arguments),
            event("output_item.done", index, item=item),
        ]

    asking = [thought, message(TEXT), *both]
    streamed_thought = [
        event("output_item.added", 0, item={**thought, "summary": []}),
        event("reasoning_summary_part.added", 0, summary_index=0, part={"type": "summary_text", "text": ""}),
        *(event("reasoning_summary_text.delta", 0, summary_index=0, delta=p) for p in (REASONING[:4], REASONING[4:])),
        event("reasoning_summary_text.done", 0, summary_index=0, text=REASONING),
        event("output_item.done", 0, item=thought),
    ]
    first, last = body("completed", asking, (10, 7, 4)), body("completed", [message(CLOSING)], (30, 5, 0))
    return Sample(
        OpenAIResponsesModel,
        Answer(
            first,
            [
                {"type": "response.created", "response": body("in_progress", [], None)},
                *streamed_thought,
                *streamed_message(1, TEXT),
                *streamed_call(2, both[0]),
                *streamed_call(3, both[1]),
                {"type": "response.completed", "response": first},
            ],
        ),
        Answer(last, [*streamed_message(0, CLOSING), {"type": "response.completed", "response": last}]),
    )


def _anthropic() -> Sample:
    def body(content: list[Any], reason: str | None, usage: dict[str, int]) -> dict[str, Any]:
        head = {"id": "a1", "type": "message", "role": "assistant", "model": "m-1"}
        return {**head, "content": content, "stop_reason": reason, "usage": usage}

    def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            {"type": "content_block_start", "index": index, "content_block": start},
            *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
            {"type": "content_block_stop", "index": index},
        ]

    def text(index: int, said: str) -> list[dict[str, Any]]:
        pieces = [{"type": "text_delta", "text": piece} for piece in (said[:3], said[3:])]
        return block(index, {"type": "text", "text": ""}, *pieces)

    def end(reason: str, output_tokens: int) -> list[dict[str, Any]]:
        delta = {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": output_tokens}}
        return [delta, {"type": "message_stop"}]

    thinking = {"type": "thinking", "thinking": REASONING, "signature": "sealed"}
    both = [
        {"type": "tool_use", "id": f"c{n}", "name": NAME, "input": {"city": city}}
        for n, city in enumerate(CITIES, start=1)
    ]
    used = {"input_tokens": 6, "cache_read_input_tokens": 4, "output_tokens": 7}
    events = [
        {"type": "message_start", "message": body([], None, {**used, "output_tokens": 1})},
        {"type": "ping"},
        *block(
            0,
            {"type": "thinking", "thinking": "", "signature": ""},
            *({"type": "thinking_delta", "thinking": piece} for piece in (REASONING[:4], REASONING[4:])),
            {"type": "signature_delta", "signature": "sealed"},
        ),
        *text(1, TEXT),
    ]
    for index, call in enumerate(both):
        pieces = ("", _json(CITIES[index])[:6], _json(CITIES[index])[6:])
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
        events += block(index + 2, {**call, "input": {}}, *deltas)
    closing = {"input_tokens": 30, "output_tokens": 5}
    return Sample(
        AnthropicChatModel,
        Answer(
            body([thinking, {"type": "text", "text": TEXT}, *both], "tool_use", used), [*events, *end("tool_use", 7)]
        ),
        Answer(
            body([{"type": "text", "text": CLOSING}], "end_turn", closing),
            [
                {"type": "message_start", "message": body([], None, {**closing, "output_tokens": 1})},
                *text(0, CLOSING),
                *end("end_turn", 5),
            ],
        ),
    )


def _gemini() -> Sample:
    def body(parts: list[Any], usage: dict[str, int] | None = None, reason: str | None = None) -> dict[str, Any]:
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
        if reason is not None:
            candidate["finishReason"] = reason
        return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "m-1", "responseId": "a1"}

    used = {"promptTokenCount": 10, "candidatesTokenCount": 5, "thoughtsTokenCount": 2, "cachedContentTokenCount": 4}
    closing = {"promptTokenCount": 30, "candidatesTokenCount": 5}
    both: list[dict[str, Any]] = [{"functionCall": {"name": NAME, "args": {"city": city}}} for city in CITIES]
    both[0]["thoughtSignature"] = "sealed"
    thoughts = [{"text": piece, "thought": True} for piece in (REASONING[:4], REASONING[4:])]
    whole = [{"text": REASONING, "thought": True}, {"text": TEXT}, *both]
    return Sample(
        GeminiChatModel,
        Answer(
            body(whole, used, "STOP"),
            [
                *(body([thought]) for thought in thoughts),
                body([{"text": TEXT}]),
                body(both, used),
                body([{"text": ""}], used, "STOP"),
            ],
        ),
        Answer(
            body([{"text": CLOSING}], closing, "STOP"),
            [body([{"text": CLOSING[:5]}]), body([{"text": CLOSING[5:]}], closing, "STOP")],
        ),
        has_ids=False,
    )


def _ollama() -> Sample:
    def body(message: dict[str, Any], used: tuple[int, int] | None = None) -> dict[str, Any]:
        head = {"model": "m-1", "created_at": "2026-01-01T00:00:00Z", "message": {"role": "assistant", **message}}
        if used is None:
            return {**head, "done": False}
        return {**head, "done": True, "done_reason": "stop", "prompt_eval_count": used[0], "eval_count": used[1]}

    both = [{"function": {"name": NAME, "arguments": {"city": city}}} for city in CITIES]
    whole = {"thinking": REASONING, "content": TEXT, "tool_calls": both}
    return Sample(
        OllamaChatModel,
        Answer(
            body(whole, (10, 7)),
            [
                *(body({"content": "", "thinking": piece}) for piece in (REASONING[:4], REASONING[4:])),
                body({"content": TEXT}),
                *(body({"content": "", "tool_calls": [call]}) for call in both),
                body({"content": ""}, (10, 7)),
            ],
        ),
        Answer(
            body({"content": CLOSING}, (30, 5)),
            [body({"content": CLOSING[:5]}), body({"content": CLOSING[5:]}), body({"content": ""}, (30, 5))],
        ),
        has_ids=False,
        content_type="application/x-ndjson",
    )


SAMPLES = (_openai(), _responses(), _anthropic(), _gemini(), _ollama())
