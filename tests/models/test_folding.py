"""Chunks fold to one message: parts in order, reasoning with its signature, each call separate."""

from __future__ import annotations

import tracemalloc
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from traced_tools import AssistantMessage, TextPart, ToolCall, Usage
from traced_tools.core import ProviderPart, ReasoningPart
from traced_tools.models import ChatChunk, ChatResponse, ToolCallDelta
from traced_tools.models.base import MADE_UP_ID
from traced_tools.models.folding import ChunkFold


def folded(*chunks: ChatChunk) -> ChatResponse:
    fold = ChunkFold()
    for chunk in chunks:
        fold.add(chunk)
    return fold.response()


def calls(*deltas: ToolCallDelta) -> list[tuple[str, str, str | None]]:
    response = folded(*(ChatChunk(tool_calls=(delta,)) for delta in deltas))
    return [(call.name, call.arguments, call.id) for call in response.tool_calls]


def test_parts_keep_the_order_in_which_they_began() -> None:
    search = ProviderPart('{"type": "search"}')
    message = folded(
        ChatChunk(reasoning="hm"),
        ChatChunk(reasoning="m"),
        ChatChunk(text="I "),
        ChatChunk(text="look"),
        ChatChunk(parts=(search,)),
        ChatChunk(text="found"),
        ChatChunk(tool_calls=(ToolCallDelta(0, "c1", "add", "{"),)),
        ChatChunk(tool_calls=(ToolCallDelta(0, None, None, "}"),)),
    ).message
    assert message.parts == (
        ReasoningPart("hmm"),
        TextPart("I look"),
        search,
        TextPart("found"),
        ToolCall("add", "{}", "c1"),
    )


def test_later_counts_of_zero_or_none_replace_no_count() -> None:
    first = Usage(input_tokens=50, output_tokens=1, cache_read_tokens=20, cache_write_tokens=0)
    last = Usage(input_tokens=0, output_tokens=9, cache_write_tokens=3, reasoning_tokens=0)
    expected = Usage(input_tokens=50, output_tokens=9, cache_read_tokens=20, cache_write_tokens=3, reasoning_tokens=0)
    assert folded(ChatChunk(usage=first), ChatChunk(usage=last), ChatChunk(usage=Usage())).usage == expected
    assert folded(ChatChunk(usage=Usage(input_tokens=0)), ChatChunk(usage=first)).usage == first


def test_a_reasoning_part_without_text_ends_the_reasoning_before_it() -> None:
    sealed = folded(
        ChatChunk(reasoning="one"),
        ChatChunk(parts=(ReasoningPart("", signature="s1", id="r1"),)),
        ChatChunk(reasoning="two"),
        ChatChunk(parts=(ReasoningPart("", signature="s2"),)),
        ChatChunk(parts=(ReasoningPart("", signature="s3"),)),
    )
    assert sealed.message.parts == (
        ReasoningPart("one", signature="s1", id="r1"),
        ReasoningPart("two", signature="s2"),
        ReasoningPart("", signature="s3"),
    )


def test_a_whole_text_is_not_joined_to_the_text_before_it() -> None:
    parts = folded(ChatChunk(text="a"), ChatChunk(parts=(TextPart("b", signature="s"),)), ChatChunk(text="c")).message
    assert parts.parts == (TextPart("a"), TextPart("b", signature="s"), TextPart("c"))


def test_an_id_repeated_on_each_piece_is_one_call() -> None:
    assert calls(ToolCallDelta(0, "c", "f", "{"), ToolCallDelta(0, "c", "f", "}")) == [("f", "{}", "c")]


def test_two_calls_that_share_an_id_get_different_ids() -> None:
    (first, second) = calls(ToolCallDelta(0, "0", "f", "{}"), ToolCallDelta(1, "0", "g", "{}"))
    assert first == ("f", "{}", "0")
    assert second[:2] == ("g", "{}")
    assert second[2] is not None and second[2].startswith(MADE_UP_ID)


def test_pieces_of_two_calls_may_interleave() -> None:
    pieces = [
        ToolCallDelta(0, "a", "f", "{"),
        ToolCallDelta(1, "b", "g", "["),
        ToolCallDelta(0, None, None, "}"),
        ToolCallDelta(1, None, None, "]"),
    ]
    assert calls(*pieces) == [("f", "{}", "a"), ("g", "[]", "b")]


def test_a_delta_without_an_index_belongs_to_the_call_of_its_id_or_to_the_last_call() -> None:
    pieces = [
        ToolCallDelta(None, "a", "f", "{"),
        ToolCallDelta(None, None, None, "}"),
        ToolCallDelta(None, "b", "g", "{"),
        ToolCallDelta(None, "b", None, "}"),
    ]
    assert calls(*pieces) == [("f", "{}", "a"), ("g", "{}", "b")]


def test_another_id_at_the_same_index_starts_another_call() -> None:
    assert [call[0] for call in calls(ToolCallDelta(0, "a", "f"), ToolCallDelta(0, "b", "g"))] == ["f", "g"]


def test_an_id_that_arrives_late_does_not_start_another_call() -> None:
    ((name, arguments, call_id),) = calls(ToolCallDelta(0, None, "f", "{"), ToolCallDelta(0, "late", None, "}"))
    assert (name, arguments) == ("f", "{}")
    assert call_id


def test_each_delta_is_returned_with_the_identity_of_its_call() -> None:
    fold = ChunkFold()
    fold.add(ChatChunk(tool_calls=(ToolCallDelta(7, "a", "f", "{"),)))
    piece = ChatChunk(tool_calls=(ToolCallDelta(7, None, None, "}"),))
    fold.add(piece)
    assert fold.with_call_identity(piece).tool_calls == (ToolCallDelta(0, "a", "f", "}"),)
    whole = ChatChunk(parts=(ToolCall("g", "{}"),))
    fold.add(whole)
    (call,) = fold.with_call_identity(whole).calls()
    assert call == fold.response().tool_calls[1]
    assert call.id


def test_a_chunk_without_calls_is_returned_unchanged() -> None:
    chunk = ChatChunk(text="a")
    assert ChunkFold().with_call_identity(chunk) is chunk


def test_the_last_usage_id_and_finish_reason_count() -> None:
    response = folded(
        ChatChunk(id="1", model="m", usage=Usage(input_tokens=1), finish_reason="stop"),
        ChatChunk(usage=Usage(input_tokens=2)),
        ChatChunk(),
    )
    assert (response.id, response.model, response.finish_reason) == ("1", "m", "stop")
    assert response.usage == Usage(input_tokens=2)


def test_a_chunk_that_restarts_the_answer_discards_the_chunks_before_it() -> None:
    response = folded(
        ChatChunk(text="half", id="1", usage=Usage(input_tokens=1), finish_reason="length"),
        ChatChunk(tool_calls=(ToolCallDelta(0, "c", "f", '{"a":'),)),
        ChatChunk(text="who", restarts=True),
        ChatChunk(text="le"),
        ChatChunk(tool_calls=(ToolCallDelta(0, "c", "g", "{}"),)),
    )
    assert response == ChatResponse(AssistantMessage("whole", tool_calls=[ToolCall("g", "{}", "c")]))


def test_memory_is_limited_by_the_message_and_not_by_the_number_of_chunks() -> None:
    chunks: list[Any] = [ChatChunk(), ChatChunk(usage=Usage(input_tokens=1)), ChatChunk(id="x")]
    chunks.append(ChatChunk(tool_calls=(ToolCallDelta(0, "c", "f", ""),)))
    fold = ChunkFold()
    for chunk in chunks:
        fold.add(chunk)
    tracemalloc.start()
    try:
        for _ in range(2_000):
            for chunk in chunks:
                fold.add(chunk)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 20_000


@given(st.lists(st.text(max_size=5), max_size=20), st.lists(st.text(max_size=5), max_size=20))
def test_text_and_arguments_do_not_depend_on_how_they_were_split(text: list[str], arguments: list[str]) -> None:
    chunks = [ChatChunk(text=piece) for piece in text]
    chunks += [ChatChunk(tool_calls=(ToolCallDelta(0, "c", "f", piece),)) for piece in arguments]
    message = folded(*chunks).message
    assert message.text == AssistantMessage("".join(text)).text
    assert [call.arguments for call in message.tool_calls] == ["".join(arguments) or "{}"] * bool(arguments)
