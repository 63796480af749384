"""The typed events of a run: immutable, and JSON with `model_dump_json`.

A `repr` shows which event it is and never what was said.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from traced_tools.messages import Value


class Event(Value):
    """Something that happened in a run.

    Args:
        id: a UUID of version 7, so that ids sort by time.
        time: when, in UTC.
        run_id: the run it belongs to.
        sequence: its number within the run, from 1 and without gaps. A delta has none of its own: it carries that of
            the event before it, 0 when there is none.
        trace_id: the run's trace in hex; None when nothing is traced.
        span_id: the span it happened in, in hex.
        agent: the client's name.
        conversation_id: the caller's conversation, when it gave one.
        iteration: the pass of the tool loop, from 1; 0 outside it.
    """

    type: str
    id: str
    time: datetime
    run_id: str
    sequence: int
    trace_id: str | None = None
    span_id: str | None = None
    agent: str
    conversation_id: str | None = None
    iteration: int


class Delta(Event):
    """A piece of an answer that is being streamed; `delta_index` numbers the pieces of a run from 0."""

    delta_index: int


class TextDelta(Delta):
    """A piece of the answer's text."""

    type: Literal["text_delta"] = "text_delta"
    text: str = Field(repr=False)


class ToolArgumentsDelta(Delta):
    """A piece of a tool call's arguments, as the model writes them.

    Args:
        call_id: the call it belongs to: the id that results and spans of the call have.
        tool_name: the tool, as the model wrote its name.
        arguments: JSON text; the pieces of a call join to its arguments.
    """

    type: Literal["tool_arguments_delta"] = "tool_arguments_delta"
    call_id: str
    tool_name: str = Field(repr=False)
    arguments: str = Field(repr=False)
