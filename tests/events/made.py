"""Sample events, as a run emits them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from traced_tools.core.messages import Usage
from traced_tools.observe import (
    AnswerEvaluated,
    Event,
    IterationFinished,
    IterationStarted,
    MemoryCompacted,
    MemoryRead,
    MemoryStored,
    MissingResultsAnswered,
    ModelResponded,
    RunFinished,
    RunStarted,
    TextDelta,
    ToolArgumentsDelta,
    ToolDecided,
    ToolFinished,
    ToolIntended,
    ToolProgressed,
    ToolsChanged,
    ToolsDiscovered,
    ToolStarted,
)

START = datetime(2025, 1, 31, 23, 59, 59, 123456, tzinfo=UTC)
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HOSTILE = "\x00\x07\x1b[31m\x1b]0;owned\x07\r\n\u2028\u2029\x85\x9b2J\u202e\ud800\udfff \udcff\\\"'é😀"
"""Text with whatever ends lines, moves cursors, turns directions and has no encoding."""

texts = st.text(st.characters(codec=None), max_size=50) | st.sampled_from([HOSTILE, HOSTILE * 1000])
"""Any text, lone surrogates included."""


def common(number: int = 1, **fields: Any) -> dict[str, Any]:
    """The fields of every event; its `number` makes it another one."""
    return {
        "id": f"019316a2-9d5c-7d1e-8c1b-{number:012x}",
        "time": START + timedelta(milliseconds=number),
        "run_id": "019316a2-9d5c-7d1e-8c1b-5b3f6c2a7e10",
        "sequence": number,
        "trace_id": TRACE_ID,
        "span_id": SPAN_ID,
        "agent": "travel",
        "conversation_id": "c-1",
        "iteration": 1,
        **fields,
    }


def started(number: int = 1, **fields: Any) -> ToolStarted:
    """A tool starts."""
    call = {"call_id": "call_1", "tool": "get_weather", "source": "local", "batch_index": 0, "batch_size": 1}
    return ToolStarted(**common(number, **{**call, **fields}))


def batch(size: int, first: int = 1, **fields: Any) -> list[Event]:
    """Distinct events."""
    return [started(number, **fields) for number in range(first, first + size)]


def one_of_each(text: str = "words") -> list[Event]:
    """One event of each type, with `text` in every field that may contain external text."""
    call = {"call_id": text, "tool": text, "source": text, "batch_index": 0, "batch_size": 1}
    usage = Usage(input_tokens=812, output_tokens=56)
    responded = {"model": text, "provider": text, "response_id": text, "finish_reason": text, "tool_calls": 1}
    return [
        RunStarted(**common(1, iteration=0, agent=text), model=text, provider=text, input_messages=text),
        IterationStarted(**common(2)),
        TextDelta(**common(2), delta_index=0, size=5, text=text, may_export=True),
        ToolArgumentsDelta(**common(2), delta_index=1, size=5, call_id=text, tool_name=text, arguments=text),
        ModelResponded(**common(3), **responded, usage=usage, duration=1.25, output_messages=text),
        AnswerEvaluated(
            **common(4),
            advisor=text,
            name=text,
            score=0.25,
            label=text,
            passed=False,
            error_type=text,
            explanation=text,
        ),
        ToolIntended(**common(4), **call, arguments_size=16, arguments=text),
        ToolDecided(
            **common(5), **call, decision="denied", advisor=text, reason_code=text, error_type=text, intent=text
        ),
        ToolStarted(**common(6), **call),
        ToolProgressed(**common(6), **call, progress=1.0, total=4.0, message=text),
        ToolFinished(**common(7), **call, outcome="ok", attempts=2, duration=0.5, result_size=7, result=text),
        MissingResultsAnswered(**common(8), not_run=2, unknown=1),
        ToolsChanged(**common(8), server="github", changes=("get_issue: description",), refused=True),
        ToolsDiscovered(**common(8), tools=("get_weather", "get_time"), index="keyword", searched=True),
        MemoryRead(**common(9), messages=3, left_out=4),
        MemoryStored(**common(10), messages=2),
        MemoryCompacted(
            **common(11),
            entry_id=text,
            trigger=text,
            strategy=text,
            covered=12,
            through=14,
            branch=text,
            tokens_before=900,
            tokens_after=300,
            estimated=True,
        ),
        IterationFinished(**common(12), outcome="tool_calls", tool_calls=1, duration=2.0),
        RunFinished(
            **common(13, iteration=0, conversation_id=text),
            stop_reason="answered",
            iterations=2,
            tool_calls=1,
            usage=usage,
            duration=3.5,
            output_messages=text,
        ),
    ]
