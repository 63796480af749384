"""Whatever is recorded comes back from the log as it was, and a log that was altered is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traced_tools import Approve, AssistantMessage, Reject, SystemMessage, ToolCall, ToolMessage, Usage, UserMessage
from traced_tools.core.approval import Denied
from traced_tools.core.enums import Decision, ToolOutcome
from traced_tools.core.messages import (
    ImagePart,
    Message,
    ProviderPart,
    ReasoningPart,
    TextPart,
    ToolResultPart,
)
from traced_tools.core.state_key import StateKey
from traced_tools.core.tool_input import Provide
from traced_tools.core.tool_result import ToolResult
from traced_tools.core.totals import NestedUsage
from traced_tools.durable.records import (
    Answered,
    CallEnded,
    Claimed,
    Finished,
    KeptDecision,
    Record,
    SpentRecord,
    StoredRecord,
    Submitted,
    read_records,
    stored_record,
)
from traced_tools.errors import ResumeError
from traced_tools.loop.paused_runs import Question
from traced_tools.loop.state import KeptByAdvisor, KeptResult

KEYS = (StateKey(b"the first key of the tests"), StateKey(b"the second key of the tests"))

texts = st.text(st.characters(codec=None), max_size=8) | st.sampled_from(["\ud800", "\0", "\\", "\\0", "\\ud800", "🌧"])
encodable = st.text('ab🌧é"\\\n\0', min_size=1, max_size=6).filter(str.strip)
maybe_text = st.none() | texts
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | encodable,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(encodable, inner, max_size=2),
    max_leaves=5,
)
objects = st.dictionaries(encodable, values, max_size=2)
times = st.none() | st.floats(0, 4e9)

images = st.builds(ImagePart, data=st.binary(min_size=1, max_size=6)) | st.just(ImagePart(url="https://x.example/i"))
calls = st.builds(ToolCall, encodable, objects, id=encodable)
answers = st.lists(
    st.builds(TextPart, encodable)
    | st.builds(ReasoningPart, encodable, signature=st.none() | encodable)
    | st.builds(ProviderPart, encodable)
    | calls,
    min_size=1,
    max_size=3,
).map(lambda parts: AssistantMessage(tuple(parts)))
result_parts = st.builds(
    ToolResultPart,
    call_id=encodable,
    name=encodable,
    content=encodable,
    images=st.lists(images, max_size=1).map(tuple),
    is_error=st.booleans(),
)
messages: st.SearchStrategy[Sequence[Message]] = st.lists(
    st.builds(SystemMessage, encodable)
    | st.builds(UserMessage, st.lists(st.builds(TextPart, encodable) | images, min_size=1, max_size=2).map(tuple))
    | answers
    | st.lists(result_parts, min_size=1, max_size=2, unique_by=lambda part: part.call_id).map(
        lambda parts: ToolMessage(tuple(parts))
    ),
    max_size=3,
)
results = st.builds(
    ToolResult,
    call_id=texts,
    tool=texts,
    content=texts,
    images=st.lists(images, max_size=1).map(tuple),
    cut=st.booleans(),
    decision=st.sampled_from(get_args(Decision)),
    outcome=st.none() | st.sampled_from(get_args(ToolOutcome)),
    error_type=maybe_text,
    advisor=maybe_text,
    reason_code=maybe_text,
    rule=maybe_text,
    by=maybe_text,
    edited=maybe_text,
)
codes = st.none() | st.sampled_from(["", "no_budget", "a" * 64])
decisions = (
    st.builds(Approve, by=st.none() | encodable, arguments=st.none() | objects, code=codes, decided_at=times)
    | st.builds(Reject, encodable, by=st.none() | encodable, code=codes, decided_at=times)
    | st.builds(Provide, objects, by=st.none() | encodable, decided_at=times)
    | st.builds(Denied, encodable, encodable, decided_at=times)
)
counts = st.none() | st.integers(0, 2**53)
usages = st.builds(Usage, input_tokens=counts, output_tokens=counts, reasoning_tokens=counts)
spending = st.builds(
    SpentRecord,
    usage=st.none() | usages,
    nested=st.none() | st.builds(NestedUsage, st.integers(0), st.integers(0), st.none() | usages, times),
    seconds=st.floats(0, 1e9),
    discovered_tools=st.lists(encodable, max_size=2).map(tuple),
)
attributes = st.dictionaries(encodable, encodable | st.booleans() | st.integers() | st.floats(0, 1), max_size=2)
records: st.SearchStrategy[Record] = (
    st.builds(
        lambda request, conversation, principal, attributes: Submitted.of(
            Question(tuple(request), conversation, principal, attributes)
        ),
        messages,
        maybe_text,
        maybe_text,
        attributes,
    )
    | st.builds(
        Answered,
        iteration=st.integers(1),
        answer=answers,
        prefix=st.integers(0),
        messages=messages.map(tuple),
        advisors=st.lists(st.builds(KeptByAdvisor, name=texts, state=st.just('{"é": "\\ud800"}')), max_size=1).map(
            tuple
        ),
        spent=spending,
    )
    | st.builds(CallEnded, result=results.map(KeptResult.of), spent=spending)
    | st.builds(Claimed, decisions=st.dictionaries(texts, decisions.map(KeptDecision.of), max_size=2))
    | st.builds(Finished, content=texts, stop_reason=st.just("answered"))
)
keys = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)


def log_of(of_run: Sequence[Record], key: str, state_key: StateKey | None) -> list[StoredRecord]:
    rows: list[StoredRecord] = []
    for number, record in enumerate(of_run):
        rows.append(stored_record(record, key, number, rows[-1].digest if rows else "", state_key))
    return rows


@given(st.lists(records, min_size=1, max_size=3), keys, st.sampled_from([None, *KEYS]))
def test_records_come_back_from_a_log_as_they_were(of_run: list[Record], key: str, state_key: StateKey | None) -> None:
    accepted = () if state_key is None else KEYS
    assert read_records(log_of(of_run, key, state_key), key, accepted) == of_run


@given(decisions)
def test_a_decision_comes_back_from_a_record_as_it_was(decision: Any) -> None:
    known = KeptDecision.of(decision).decided()
    assert (known, known.decided_at) == (decision, decision.decided_at or getattr(known, "decided_at", None))


@given(results)
def test_a_result_comes_back_from_a_record_as_the_model_has_read_it(result: ToolResult) -> None:
    known = KeptResult.of(result).result()
    assert (known.part(), known) == (result.part(), result)


@given(st.lists(records, min_size=2, max_size=3), st.data())
def test_a_log_that_was_altered_is_refused(of_run: list[Record], data: st.DataObject) -> None:
    state_key = data.draw(st.sampled_from([None, KEYS[0]]))
    rows, others = log_of(of_run, "k", state_key), log_of(of_run[::-1], "l", state_key)
    place = data.draw(st.integers(0, len(rows) - 2))
    alteration = data.draw(st.sampled_from(["body", "swap", "drop", "splice"]))
    if alteration == "body":
        rows[place] = StoredRecord(place, rows[place].body.replace('"', '" ', 1), rows[place].digest)
    elif alteration == "swap":
        rows[place], rows[place + 1] = rows[place + 1], rows[place]
    elif alteration == "drop":
        del rows[place]
    else:
        rows[place] = others[place]
    with pytest.raises(ResumeError, match="was altered or is missing"):
        read_records(rows, "k", () if state_key is None else KEYS)


@given(st.lists(records, min_size=1, max_size=2))
def test_a_log_is_refused_that_is_signed_with_another_key_or_with_none(of_run: list[Record]) -> None:
    for state_key in (None, KEYS[1]):
        with pytest.raises(ResumeError, match="is not signed with a configured key"):
            read_records(log_of(of_run, "k", state_key), "k", KEYS[:1])
