"""Events are immutable, survive a JSON round trip and match the published JSON Schema."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import ValidationError

import traced_tools.observe.typed_events.types as all_types
from tests.markers import MARKER
from traced_tools import Usage
from traced_tools.core.enums import DECISIONS, ITERATION_OUTCOMES, POLICY_DECISIONS, STOP_REASONS, TOOL_OUTCOMES
from traced_tools.core.policy_verdict import PolicyVerdict
from traced_tools.events import json_schema
from traced_tools.observe import Delta, Event, ToolEvent, ToolStarted

PUBLISHED = Path(__file__).parents[2] / "docs" / "reference" / "events.schema.json"
KINDS: list[type[Event]] = [
    kind
    for kind in vars(all_types).values()
    if isinstance(kind, type) and issubclass(kind, Event) and kind not in (Event, ToolEvent, Delta)
]
SCHEMA = json_schema()
VALIDATOR = Draft202012Validator(SCHEMA)

counts = st.integers(0, 2**53)
texts = st.text(st.characters())  # lone surrogates, control characters and all
ids = st.uuids().map(str)
OURS = ("id", "run_id", "parent_run_id", "trace_id", "span_id")
usages = st.none() | st.builds(
    Usage,
    **{name: st.none() | counts for name in Usage.model_fields},  # type: ignore[arg-type]
)
names_in_code = st.text(st.characters(codec="ascii"))
verdicts = st.builds(
    PolicyVerdict,
    *(names_in_code, st.sampled_from(POLICY_DECISIONS), names_in_code, names_in_code),
    st.none() | names_in_code,
    st.none() | st.sampled_from(DECISIONS),
    st.booleans(),
)
scalars = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | texts
values = scalars | st.lists(scalars).map(tuple)
WORDS: dict[str, tuple[str, ...]] = {"decision": DECISIONS, "stop_reason": STOP_REASONS}
OUTCOMES = {"tool_finished": TOOL_OUTCOMES, "iteration_finished": ITERATION_OUTCOMES}


def value_of(kind: type[Event], name: str) -> st.SearchStrategy[Any]:
    field = kind.model_fields[name]
    if name == "outcome":
        return st.sampled_from(OUTCOMES[kind.model_fields["type"].default])
    if name in WORDS:
        return st.sampled_from(WORDS[name])
    found: dict[str, st.SearchStrategy[Any]] = {
        "time": st.datetimes(timezones=st.just(UTC)),
        "usage": usages,
        "duration": st.floats(0, 1e9),
        "score": st.none() | st.floats(0, 1),
        "progress": st.floats(allow_nan=False, allow_infinity=False),
        "total": st.none() | st.floats(allow_nan=False, allow_infinity=False),
    }
    if name in found:
        return found[name]
    if name in OURS:
        return ids if field.is_required() else st.none() | ids
    if name == "attributes":
        return st.none() | st.dictionaries(st.text(st.characters(codec="ascii")), values)
    if name == "evaluated":
        return st.lists(verdicts, max_size=2).map(tuple)
    if name in ("tools", "changes", "actors"):
        return st.lists(texts).map(tuple)
    wanted = (field.annotation, *get_args(field.annotation))
    made = st.booleans() if bool in wanted else counts if int in wanted else texts
    return made if field.is_required() else st.none() | made if type(None) in wanted else made


def events_of(kind: type[Event]) -> st.SearchStrategy[Event]:
    exported = [name for name, field in kind.model_fields.items() if not field.exclude]
    fields = {name: value_of(kind, name) for name in exported if name not in ("type", "schema_version")}
    return st.fixed_dictionaries(fields).map(lambda values: kind(**values))


ANY = st.one_of([events_of(kind) for kind in KINDS])


def started(**fields: Any) -> ToolStarted:
    common = {"id": "e", "time": datetime(2026, 1, 2, tzinfo=UTC), "run_id": "r", "sequence": 1, "agent": "a"}
    call = {"call_id": "c", "tool": "t", "source": "local", "batch_index": 0, "batch_size": 1, "iteration": 1}
    return ToolStarted(**{**common, **call, **fields})


@given(ANY)
def test_every_event_goes_through_json_and_back(event: Event) -> None:
    for text in (event.model_dump_json(), event.model_dump_json(exclude_none=True)):
        assert type(event).model_validate_json(text) == event
        assert type(event).model_validate(json.loads(text)) == event
        assert "\n" not in text


@given(ANY)
def test_every_event_fits_the_schema(event: Event) -> None:
    VALIDATOR.validate(json.loads(event.model_dump_json()))
    VALIDATOR.validate(json.loads(event.model_dump_json(exclude_none=True)))


@given(ANY, st.sampled_from(["type", "schema_version", "id", "time", "run_id", "sequence", "agent", "iteration"]))
def test_the_schema_refuses_an_event_without_a_common_field(event: Event, name: str) -> None:
    exported = json.loads(event.model_dump_json())
    assert VALIDATOR.is_valid({**exported, "a_later_release": "adds a field"})
    del exported[name]
    assert not VALIDATOR.is_valid(exported)


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_distinguishes_event_types_and_their_fields(kind: type[Event]) -> None:
    definition = SCHEMA["$defs"][kind.__name__]
    listed = {name for name, field in kind.model_fields.items() if not field.exclude}
    assert {*definition["properties"]} == listed
    assert definition["properties"]["type"]["const"] == kind.model_fields["type"].default
    required = {name for name, field in kind.model_fields.items() if field.is_required()}
    assert {*definition["required"]} == required | {"type", "schema_version"}
    assert {"$ref": f"#/$defs/{kind.__name__}"} in SCHEMA["oneOf"]


def test_the_schema_has_all_event_types_and_no_python_terms() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert len(SCHEMA["oneOf"]) == len(KINDS) == 19
    assert "may_export" not in json.dumps(SCHEMA)
    assert "Args:" not in json.dumps(SCHEMA)


def test_the_published_schema_is_up_to_date() -> None:
    assert json.loads(PUBLISHED.read_text("utf-8")) == SCHEMA, "run `make reference`"


@pytest.mark.parametrize("kind", KINDS)
def test_every_public_event_is_exported(kind: type[Event]) -> None:
    import traced_tools.observe as public

    assert getattr(public, kind.__name__) is kind


def test_an_event_of_a_later_release_is_read_without_its_new_fields() -> None:
    exported = {**json.loads(started().model_dump_json()), "a_later_release": "adds a field"}
    assert ToolStarted.model_validate_json(json.dumps(exported)) == started()


def test_an_event_of_another_schema_version_is_refused() -> None:
    with pytest.raises(ValidationError):
        started(schema_version=2)


def test_an_event_cannot_be_changed_and_a_wrong_one_is_refused_without_its_text() -> None:
    with pytest.raises(ValidationError):
        started().tool = "another"
    with pytest.raises(ValidationError) as refused:
        started(batch_index=MARKER)
    assert MARKER not in str(refused.value)


def test_the_time_of_an_event_keeps_its_zone() -> None:
    elsewhere = datetime(2026, 1, 2, 3, tzinfo=timezone(timedelta(hours=2)))
    assert ToolStarted.model_validate_json(started(time=elsewhere).model_dump_json()).time == elsewhere


@given(st.sampled_from(KINDS).flatmap(events_of))
def test_a_repr_shows_no_content(event: Event) -> None:
    contents = {name for name, field in type(event).model_fields.items() if not field.repr}
    assert contents == {
        "principal",
        *({"input_messages"} if event.type == "run_started" else ()),
        *({"output_messages"} if event.type in ("model_responded", "run_finished") else ()),
        *({"explanation"} if event.type == "answer_evaluated" else ()),
        *({"arguments"} if event.type == "tool_intended" else ()),
        *({"intent", "arguments"} if event.type == "tool_decided" else ()),
        *({"message"} if event.type == "tool_progressed" else ()),
        *({"result"} if event.type == "tool_finished" else ()),
        *({"text", "may_export"} if event.type == "text_delta" else ()),
        *({"tool_name", "arguments", "may_export", "names_tool"} if event.type == "tool_arguments_delta" else ()),
    }
    shown = event.replace(**dict.fromkeys(contents - {"may_export", "names_tool"}, MARKER))
    assert MARKER not in repr(shown) + str(shown)
