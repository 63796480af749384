"""Any possible answer of a provider decodes to the same message whole and streamed, and is sent back unchanged."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.models.recorded import without_made_up_ids
from traced_tools import AssistantMessage, UserMessage
from traced_tools.models import ChatRequest, ChatResponse
from traced_tools.models.anthropic.chat import AnthropicChatCodec
from traced_tools.models.codec import Codec
from traced_tools.models.folding import ChunkFold
from traced_tools.models.gemini.chat import GeminiChatCodec
from traced_tools.models.ollama.chat import OllamaChatCodec
from traced_tools.models.openai.chat import OpenAIChatCodec
from traced_tools.models.openai.responses import OpenAIResponsesCodec
from traced_tools.models.openai.servers import resolve_server

words = st.text('ab 🌧é"\\\n', max_size=6)
said = words.map(lambda text: f"{text}.")
objects = st.dictionaries(
    said, st.none() | st.integers() | st.booleans() | said | st.lists(said, max_size=2), max_size=2
)
names = st.sampled_from(["weather", "math_add"])
seals = st.sampled_from(["seal+/=", "EqE"])
cuts = st.lists(st.integers(0, 8), max_size=3)


def pieces(text: str, places: Iterable[int]) -> list[str]:
    """Return `text` cut at `places`, of which those past its end make empty pieces."""
    bounds = [0, *sorted(places), len(text)]
    return [text[start:end] for start, end in zip(bounds, [*bounds[1:-1], None], strict=False)]


def streamed(codec: Codec, events: Iterable[Any]) -> ChatResponse:
    decoder, fold = codec.decoder(), ChunkFold()
    for event in events:
        for chunk in decoder.chunks(event if isinstance(event, str) else json.dumps(event)):
            fold.add(chunk)
    decoder.end()
    return fold.response()


def checked(codec: Codec, body: Any, events: Iterable[Any]) -> AssistantMessage:
    """Return the message that a whole answer and a streamed one are, once each has been seen to be the same."""
    whole, folded = map(without_made_up_ids, (codec.decode(json.dumps(body).encode()), streamed(codec, events)))
    assert folded.message == whole.message
    assert (folded.usage, folded.finish_reason) == (whole.usage, whole.finish_reason)
    return whole.message


def sent(codec: Codec, message: AssistantMessage) -> dict[str, Any]:
    """Return the request that sends an answer back."""
    return codec.encode(ChatRequest((UserMessage("hi"), message)), stream=False)


def joined(parts: Sequence[dict[str, Any]], is_text: Callable[[dict[str, Any]], bool], *fields: str) -> list[Any]:
    """Return `parts` with adjacent texts joined, because their boundaries mean nothing."""
    found = []
    for together, group in groupby(parts, key=lambda part: tuple(map(part.get, fields)) if is_text(part) else None):
        run = list(group)
        found += [{**run[0], "text": "".join(part["text"] for part in run)}] if together is not None else run
    return found


# Chat completions.

calls = st.lists(st.tuples(names, objects.map(json.dumps), cuts), max_size=3)


def chat_events(deltas: Iterable[dict[str, Any]], reason: str) -> Iterator[Any]:
    yield from ({"choices": [{"index": 0, "delta": delta}]} for delta in deltas)
    yield {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    yield "[DONE]"


def chat_calls(asked: Sequence[tuple[str, str, list[int]]]) -> tuple[list[Any], list[Any]]:
    """Return calls as a whole answer holds them, and the deltas that they come in."""
    whole, deltas = [], []
    for index, (name, arguments, places) in enumerate(asked):
        function = {"name": name, "arguments": arguments}
        whole.append({"id": f"call{index}abc", "type": "function", "function": function})
        first = {"index": index, **whole[-1], "function": {"name": name, "arguments": ""}}
        rest = [{"index": index, "function": {"arguments": piece}} for piece in pieces(arguments, places)]
        deltas += [{"tool_calls": [call]} for call in (first, *rest)]
    return whole, deltas


@given(words, words, calls, cuts, st.sampled_from(["reasoning", "reasoning_content"]))
def test_chat_completions(thoughts: str, text: str, asked: Any, places: list[int], field: str) -> None:
    codec = OpenAIChatCodec("m", resolve_server("https://api.deepseek.com", None))
    whole, deltas = chat_calls(asked)
    message = {"content": text, field: thoughts, **({"tool_calls": whole} if whole else {})}
    before = [{field: piece} for piece in pieces(thoughts, places)] + [{"content": p} for p in pieces(text, places)]
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    back = sent(codec, checked(codec, body, chat_events([*before, *deltas], "stop")))["messages"][1]
    assert (back["content"] or "", back["reasoning_content"]) == (text, thoughts)
    assert back.get("tool_calls", []) == whole


mistral_pieces = st.lists(
    st.one_of(
        said.map(lambda text: {"type": "text", "text": text}),
        said.map(lambda text: {"type": "thinking", "thinking": [{"type": "text", "text": text}]}),
        st.just({"type": "reference", "reference_ids": [1]}),
    ),
    min_size=1,
    max_size=4,
)


@given(mistral_pieces, calls)
def test_chat_completions_whose_content_is_a_list(content: list[Any], asked: Any) -> None:
    codec = OpenAIChatCodec("m", resolve_server("https://api.mistral.ai/v1", None))
    whole, deltas = chat_calls(asked)
    body = {"choices": [{"index": 0, "message": {"content": content, "tool_calls": whole}, "finish_reason": "stop"}]}
    events = chat_events([*({"content": [piece]} for piece in content), *deltas], "stop")
    back = sent(codec, checked(codec, body, events))["messages"][1]
    texts = joined([flat(piece) for piece in content], lambda piece: "text" in piece, "type")
    sent_texts = back["content"] if isinstance(back["content"], list) else plain(back["content"])
    assert [flat(piece) for piece in sent_texts] == texts
    assert [call["function"] for call in back.get("tool_calls", [])] == [call["function"] for call in whole]


def flat(piece: dict[str, Any]) -> dict[str, Any]:
    thoughts = piece.get("thinking")
    return piece if thoughts is None else {"type": "thinking", "text": "".join(each["text"] for each in thoughts)}


def plain(text: str | None) -> list[Any]:
    return [{"type": "text", "text": text}] if text else []


# Responses.

reasoning_items = st.builds(
    lambda texts, seal: {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": text} for text in texts],
        "encrypted_content": seal,
    },
    st.lists(said, max_size=3),
    seals,
)
message_items = said.map(
    lambda text: {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }
)
call_items = st.builds(
    lambda name, arguments: {"type": "function_call", "name": name, "arguments": json.dumps(arguments)}, names, objects
)
search_items = st.just({"type": "web_search_call", "status": "completed", "action": {"query": "Oslo"}})
items = st.builds(
    lambda thought, answers: [
        {**item, "id": f"{item['type'][:2]}_{index}", **({"call_id": f"call_{index}"} if "name" in item else {})}
        for index, item in enumerate([*thought, *answers])
    ],
    st.lists(reasoning_items, min_size=1, max_size=1),
    st.lists(st.one_of(message_items, call_items, search_items, reasoning_items), max_size=3).map(
        lambda found: [
            *found,
            {
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "end", "annotations": []}],
            },
        ]
    ),
)


def item_events(index: int, item: dict[str, Any], places: list[int]) -> Iterator[Any]:
    at = {"output_index": index, "item_id": item["id"]}
    emptied = {**item, "content": [], "summary": [], "arguments": ""}
    yield {"type": "response.output_item.added", **at, "item": {key: emptied[key] for key in item}}
    for number, part in enumerate(item.get("summary", ())):
        for piece in pieces(part["text"], places):
            kind = "response.reasoning_summary_text.delta"
            yield {"type": kind, **at, "summary_index": number, "delta": piece}
    for part in item.get("content", ()):
        for piece in pieces(part["text"], places):
            yield {"type": "response.output_text.delta", **at, "content_index": 0, "delta": piece}
    for piece in pieces(item.get("arguments", ""), places):
        if "arguments" in item:
            yield {"type": "response.function_call_arguments.delta", **at, "delta": piece}
    yield {"type": "response.output_item.done", **at, "item": item}


@given(items, cuts)
def test_responses(output: list[Any], places: list[int]) -> None:
    codec = OpenAIResponsesCodec("m", provider="openai")
    body = {"id": "r", "status": "completed", "output": output}
    events = [event for index, item in enumerate(output) for event in item_events(index, item, places)]
    message = checked(codec, body, [*events, {"type": "response.completed", "response": body}])
    assert sent(codec, message)["input"][1:] == [
        {key: value for key, value in item.items() if (item["type"], key) != ("function_call", "status")}
        for item in output
    ]


# Messages.

blocks = st.lists(
    st.one_of(
        st.builds(lambda text, seal: {"type": "thinking", "thinking": text, "signature": seal}, words, seals),
        st.just({"type": "redacted_thinking", "data": "xyz"}),
        said.map(lambda text: {"type": "text", "text": text}),
        st.builds(lambda name, found: {"type": "tool_use", "name": name, "input": found}, names, objects),
        objects.map(lambda found: {"type": "server_tool_use", "name": "web_search", "input": found}),
        st.just({"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"url": "u", "page_age": None}]}),
    ),
    max_size=5,
).map(lambda found: [{**block, "id": f"id_{index}"} if "name" in block else block for index, block in enumerate(found)])
GROWING = {"text": "text_delta", "thinking": "thinking_delta", "signature": "signature_delta"}


def block_events(index: int, block: dict[str, Any], places: list[int]) -> Iterator[Any]:
    growing = [name for name in GROWING if name in block]
    begun = {**block, **dict.fromkeys(growing, ""), **({"input": {}} if "input" in block else {})}
    yield {"type": "content_block_start", "index": index, "content_block": begun}
    deltas = [{"type": GROWING[name], name: piece} for name in growing for piece in pieces(block[name], places)]
    if block.get("input"):
        text = json.dumps(block["input"], ensure_ascii=False)
        deltas += [{"type": "input_json_delta", "partial_json": piece} for piece in ["", *pieces(text, places)]]
    yield from ({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas)
    yield {"type": "content_block_stop", "index": index}


@given(blocks, cuts)
def test_messages(content: list[Any], places: list[int]) -> None:
    codec = AnthropicChatCodec("m", max_tokens=9)
    used = {"input_tokens": 3, "cache_read_input_tokens": 2, "output_tokens": 5}
    events = [
        {"type": "message_start", "message": {"content": [], "usage": {**used, "output_tokens": 1}}},
        *(event for index, block in enumerate(content) for event in block_events(index, block, places)),
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ]
    message = checked(codec, {"content": content, "usage": used, "stop_reason": "end_turn"}, events)
    back = [block for turn in sent(codec, message)["messages"][1:] for block in turn["content"]]
    while content and content[-1]["type"] in ("thinking", "redacted_thinking"):
        content = content[:-1]  # the API refuses it at the end of a turn
    assert back == joined(content, lambda block: block["type"] == "text", "type")


# Gemini.

parts = st.lists(
    st.one_of(
        said.map(lambda text: {"text": text}),
        said.map(lambda text: {"text": text, "thought": True}),
        st.builds(lambda text, seal: {"text": text, "thoughtSignature": seal}, words, seals),
        st.builds(lambda text, seal: {"text": text, "thought": True, "thoughtSignature": seal}, words, seals),
        st.builds(lambda name, args: {"functionCall": {"name": name, "args": args}}, names, objects),
        st.builds(
            lambda name, args, seal: {"functionCall": {"name": name, "args": args}, "thoughtSignature": seal},
            *(names, objects, seals),
        ),
        st.just({"inlineData": {"mimeType": "image/png", "data": "AQ=="}, "thoughtSignature": "s"}),
        st.just({"inlineData": {"mimeType": "audio/wav", "data": "AQ=="}}),
        st.just({"executableCode": {"language": "PYTHON", "code": "1"}, "thoughtSignature": "s"}),
    ),
    max_size=5,
)


@given(parts, cuts)
def test_gemini(content: list[Any], places: list[int]) -> None:
    codec = GeminiChatCodec("gemini-2.5-flash")
    said_in_pieces = [
        {**part, "text": piece} if is_piece(part) else part
        for part in content
        for piece in (pieces(part["text"], places) if is_piece(part) else [""])
    ]
    candidate = {"content": {"role": "model", "parts": content}, "finishReason": "STOP"}
    events: list[Any] = [{"candidates": [{"content": {"parts": [part]}}]} for part in said_in_pieces]
    message = checked(codec, {"candidates": [candidate]}, [*events, {"candidates": [{"finishReason": "STOP"}]}])
    back = [part for turn in sent(codec, message)["contents"][1:] for part in turn["parts"]]
    assert back == joined(content, is_piece, "thought")


def is_piece(part: dict[str, Any]) -> bool:
    return "text" in part and "thoughtSignature" not in part


# Ollama.


@given(words, words, st.lists(st.tuples(names, objects), max_size=3), cuts, st.booleans())
def test_ollama(thoughts: str, text: str, asked: Any, places: list[int], has_ids: bool) -> None:
    codec = OllamaChatCodec("m")
    made = [
        {**({"id": f"call_{index}"} if has_ids else {}), "function": {"name": name, "arguments": arguments}}
        for index, (name, arguments) in enumerate(asked)
    ]
    message = {"thinking": thoughts, "content": text, "tool_calls": made}
    lines = [{"content": "", "thinking": piece} for piece in pieces(thoughts, places)]
    lines += [{"content": piece} for piece in pieces(text, places)]
    lines += [{"content": "", "tool_calls": [call]} for call in made]
    ending = {"done": True, "done_reason": "stop", "prompt_eval_count": 3, "eval_count": 2}
    events = [*({"message": line, "done": False} for line in lines), {"message": {"content": ""}, **ending}]
    back = sent(codec, checked(codec, {"message": message, **ending}, events))["messages"][1]
    assert (back["content"], back.get("thinking", "")) == (text, thoughts)
    assert back.get("tool_calls", []) == made
