"""What a trail stores of drafts: all they say, of contents no more than it is to, and something of the oddest."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.audit.trails import KEY, SECRET, bodies, calls, intent, of_kind, write
from traced_tools.audit.records import Content, Draft, Subject, timestamp
from traced_tools.audit.schema import MOST_NAME, REPEATED
from traced_tools.audit.trail import AuditTrail
from traced_tools.audit.writing.record_builder import MOST_CONTENT
from traced_tools.errors import AuditUnavailable


def columns(path: Path) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute("SELECT * FROM audit_records ORDER BY chain_id, sequence")]


BOTH_FORMS = ("arguments", "requested_arguments")

# What is stored.


def test_a_record_has_the_fields_of_its_draft(path: Path) -> None:
    draft = intent(conversation_id="c-1", trace_id="0" * 31 + "1", span_id="0" * 15 + "1")
    with AuditTrail(path, key=KEY, service="travel", tags={"region": "eu"}) as trail:
        write(trail, draft)
        key_id = of_kind(path, "intent")[0]["arguments"]["key_id"]
    (record, _) = bodies(path)
    assert record == {
        "schema_version": 1,
        "kind": "intent",
        "chain_id": record["chain_id"],
        "sequence": 1,
        "previous": "0" * 64,
        "time": timestamp(draft.time),
        "service": "travel",
        "tags": {"region": "eu"},
        "agent": "planner",
        "run_id": "run-1",
        "call_id": "call_1",
        "tool": "get_weather",
        "iteration": 1,
        "batch_index": 0,
        "conversation_id": "c-1",
        "trace_id": "0" * 31 + "1",
        "span_id": "0" * 15 + "1",
        "source": "local",
        "argument_names": ["city"],
        "batch_size": 1,
        "arguments": {"digest": record["arguments"]["digest"], "form": "json", "size": 16, "key_id": key_id},
    }


def test_columns_repeat_fields_of_the_body(path: Path) -> None:
    decision = Draft("decision", 5, intent().subject, {"decision": "allowed", "advisor": "policy"})
    with AuditTrail(path, key=KEY) as trail:
        trail.submit(intent())
        trail.submit(decision)
    for row in columns(path):
        fields = json.loads(row["body"])
        assert {name: row[name] for name in REPEATED} == {name: fields.get(name) for name in REPEATED}
        assert (row["chain_id"], row["sequence"], row["kind"]) == (
            fields["chain_id"],
            fields["sequence"],
            fields["kind"],
        )
        assert timestamp(row["time"]) == fields["time"]


def test_unknown_fields_are_omitted(path: Path) -> None:
    with AuditTrail(path, key=KEY) as trail:
        write(trail, intent())
    assert not {"service", "tags", "conversation_id", "trace_id", "span_id"} & set(of_kind(path, "intent")[0])


def stored(path: Path, content: Content, /, **options: Any) -> dict[str, Any]:
    """What a trail stores of a content."""
    with AuditTrail(path, key=KEY, **options) as trail:
        write(trail, Draft("intent", 1, intent().subject, contents={"arguments": content}))
    found: dict[str, Any] = of_kind(path, "intent")[0]["arguments"]
    return found


def test_only_a_digest_is_stored_by_default(path: Path) -> None:
    stored(path, Content(json.dumps({"city": SECRET}), True, True))
    for each in path.parent.iterdir():
        assert SECRET.encode() not in each.read_bytes()


def test_the_whole_content_is_stored_on_request(path: Path) -> None:
    content = stored(path, Content('{"city":  "Oslo"}', True, True), content="full")
    assert content["text"] == '{"city":  "Oslo"}'
    assert "cut" not in content


def test_a_redactor_gets_the_value_and_returns_what_is_stored(path: Path) -> None:
    seen: list[tuple[str, object]] = []

    def redact(name: str, value: Any) -> object:
        seen.append((name, value))
        return {**value, "city": "***"}

    content = stored(path, Content('{"city": "Oslo", "days": 2}', True, True), content="redacted", redactor=redact)
    assert seen == [("arguments", {"city": "Oslo", "days": 2})]
    assert json.loads(content["text"]) == {"city": "***", "days": 2}


def test_a_redactor_of_arguments_redacts_both_forms_of_them(path: Path) -> None:
    draft = Draft(
        "intent",
        time=1,
        contents={name: Content(json.dumps({"city": f"{SECRET} {name}"}), True, True) for name in BOTH_FORMS},
    )

    def redact(name: str, value: object) -> object:
        return "***" if name == "arguments" else value

    with AuditTrail(path, key=KEY, content="redacted", redactor=redact) as trail:
        write(trail, draft)
    (intent,) = of_kind(path, "intent")
    assert [intent[name]["text"] for name in BOTH_FORMS] == ["***", "***"]


@pytest.mark.parametrize("left", [None, 1 / 2, "a text", [1], {"a": None}])
def test_a_redactor_may_return_anything(path: Path, left: object) -> None:
    content = stored(path, Content("words", True), content="redacted", redactor=lambda name, value: left)
    text = left if left is None or isinstance(left, str) else json.dumps(left)
    assert content.get("text") == text


@pytest.mark.parametrize("text", ["{", "\ud800", '{"a": 1}'])
def test_a_redactor_that_fails_leaves_the_digest(path: Path, text: str) -> None:
    def fail(name: str, value: object) -> object:
        raise SystemError(SECRET)

    content = stored(path, Content(text, True, True), content="redacted", redactor=fail)
    assert set(content) == {"digest", "form", "size", "key_id"}


def test_a_redactor_that_returns_an_unstorable_value_leaves_the_digest(path: Path) -> None:
    content = stored(path, Content("{}", True, True), content="redacted", redactor=lambda name, value: object())
    assert "text" not in content


@pytest.mark.parametrize("content", ["full", "redacted"])
def test_only_the_digest_is_stored_for_a_tool_with_capture_disabled(path: Path, content: Any) -> None:
    redactor = (lambda name, value: value) if content == "redacted" else None
    stored(path, Content(SECRET, False), content=content, redactor=redactor)
    assert SECRET.encode() not in path.read_bytes() + Path(f"{path}.checkpoints").read_bytes()


def test_a_long_content_is_cut_and_marked_as_cut(path: Path) -> None:
    content = stored(path, Content("x" * (MOST_CONTENT + 1), True), content="full")
    assert content["text"] == "x" * MOST_CONTENT
    assert content["cut"] is True
    assert content["size"] == MOST_CONTENT + 1


# Odd drafts.

hostile = st.text(st.characters()) | st.sampled_from(["\0", "\ud800", "'; DROP TABLE audit_records; --", "\x1b[2J", "‮"])


@given(st.lists(hostile, min_size=5, max_size=5), hostile)
def test_any_text_is_stored(tmp_path_factory: pytest.TempPathFactory, names: list[str], text: str) -> None:
    path = tmp_path_factory.mktemp("any") / "audit.db"
    agent, run_id, call_id, tool, conversation = names
    with AuditTrail(path, key=KEY, content="full", service=text, tags={text: text}) as trail:
        subject = Subject(agent, run_id, call_id, tool, 1, 0, conversation)
        write(trail, Draft("intent", 1, subject, {"model": text}, {"reason": Content(text, True)}))
    (record,) = of_kind(path, "intent")
    assert record["reason"]["text"] == text
    assert record["model"] == text
    expected = [
        each.encode("utf-8", "surrogatepass").decode("utf-8", "replace").replace("\0", "\ufffd") for each in names
    ]
    assert [record[name] for name in ("agent", "run_id", "call_id", "tool", "conversation_id")] == expected


@pytest.mark.parametrize(
    "odd",
    [
        intent("odd", tool="t" * 10_000_000),
        intent("odd", tool="\U00020000" * 300, conversation_id="\u3042" * 600, agent="\ud800" * 300),
        intent("odd", arguments=json.dumps({"a": "x" * 10_000_000})),
        intent("odd", arguments="\ud800" * 1000),
        intent("odd", iteration=2**80, batch_index="one"),
        intent("odd", tool=17, agent=b"bytes", conversation_id=["a", "list"]),
        Draft("intent", 1, intent("odd").subject, {"model": object(), "duration": float("nan"), "attempts": 2**5000}),
        Draft("intent", 1, intent("odd").subject, {"x": {"y" * 100_000: [[[[[{}]]]]] * 10_000}}),
    ],
    ids=["long name", "long characters", "10 MB", "surrogates", "numbers", "types", "no JSON", "a lot"],
)
def test_an_odd_draft_is_recorded_and_does_not_disturb_its_neighbours(path: Path, odd: Draft) -> None:
    with AuditTrail(path, key=KEY) as trail:
        trail.submit(intent("before"))
        trail.submit(odd)
        write(trail, intent("after"))
    assert calls(path) == ["before", "odd", "after"]
    assert not of_kind(path, "gap")
    assert path.stat().st_size < 1_000_000
    for row in columns(path):
        assert all(len(str(row[name]).encode()) <= MOST_NAME for name in REPEATED)


def circular() -> dict[str, Any]:
    fields: dict[str, Any] = {}
    fields["again"] = fields
    return fields


def test_a_circular_draft_is_cut(path: Path) -> None:
    with AuditTrail(path, key=KEY) as trail:
        write(trail, Draft("intent", 1, intent().subject, circular()))
    assert calls(path) == ["call_1"]


@pytest.mark.parametrize("time", [None, "now", 2**80, -(2**80)])
def test_an_invalid_time_is_replaced_by_the_current_time(path: Path, time: Any) -> None:
    with AuditTrail(path, key=KEY) as trail:
        write(trail, Draft("intent", time, intent().subject))
    (record, _) = bodies(path)
    assert record["time"][:2] == "20"


def test_a_draft_that_cannot_become_a_record_is_lost_alone_and_counted(path: Path) -> None:
    impossible = Draft("intent", 1, "nobody")  # type: ignore[arg-type]
    with AuditTrail(path, key=KEY) as trail:
        trail.submit(intent("before"))
        with pytest.raises(AuditUnavailable):
            write(trail, impossible)
        write(trail, intent("after"))
    assert calls(path) == ["before", "after"]
    (gap,) = of_kind(path, "gap")
    assert (gap["late"], gap["lost"]) == (0, 1)
