"""The attributes of a run are on its span, its events and its audit records, and nowhere else."""

from __future__ import annotations

import json
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.sampling import Decision, StaticSampler

from tests.audit.draft_trails import KeptTrail, auditing
from tests.audit.trails import bodies
from tests.captured import Telemetry
from tests.events.watching import Watching
from tests.modes import MODES, run
from tests.observe.runs import adds
from tests.sample_tools import add
from traced_tools import Advisor, AuditAdvisor, AuditTrail, ChatClient, ToolCall
from traced_tools.observe import RunFinished
from traced_tools.testing import ScriptedChatModel

GIVEN = {"user.id": "ana", "beta": True, "seats": 3, "share": 0.5, "tags": ["a", "b"]}
ON_SPAN = {**GIVEN, "tags": ("a", "b")}


def agent(*advisors: Any, **settings: Any) -> ChatClient:
    return ChatClient(ScriptedChatModel([adds(1, 2), "three"]), tools=[add], advisors=advisors, **settings)


@pytest.mark.parametrize("mode", [*MODES, "start"])
def test_attributes_are_on_the_runs_span_events_and_records(mode: str) -> None:
    telemetry, watching, trail = Telemetry(), Watching(), KeptTrail()
    spec = agent(watching, auditing(trail), telemetry=telemetry.options).prompt("?", attributes=GIVEN)
    if mode == "start":
        by_hand = spec.start()
        while step := by_hand.next():
            by_hand.perform(step)
    else:
        run(mode, spec)
    span = telemetry.one("invoke_agent assistant")
    assert {key: (span.attributes or {})[key] for key in GIVEN} == ON_SPAN
    assert [span.name for span in telemetry.spans if "user.id" in (span.attributes or {})] == [span.name]
    assert {event.type for event in watching.events} > {"run_started", "tool_finished", "run_finished"}
    assert all(event.attributes == ON_SPAN for event in watching.events)
    assert [draft.subject and draft.subject.attributes for draft in trail.drafts] == [ON_SPAN] * 3


def test_attributes_are_neither_content_nor_metric_labels() -> None:
    telemetry = Telemetry(capture="NO_CONTENT")
    run("call", agent(telemetry=telemetry.options).prompt("?", attributes=GIVEN))
    assert (telemetry.one("invoke_agent assistant").attributes or {})["user.id"] == "ana"
    assert telemetry.metrics
    assert not [point for point in telemetry.metrics if GIVEN.keys() & point.attributes.keys()]


def test_attributes_of_a_prompt_are_merged_into_the_clients() -> None:
    client = agent(attributes={"team": "travel", "tier": "free"})
    response = run("call", client.prompt("?", attributes={"tier": "paid", "user": "ana"}))
    assert dict(response.run.attributes) == {"team": "travel", "tier": "paid", "user": "ana"}
    assert client.replace(name="other").prompt("?").new_run().attributes == {"team": "travel", "tier": "free"}


def test_a_sampler_sees_attributes() -> None:
    seen: list[Any] = []

    class Sampler(StaticSampler):
        def should_sample(self, *given: Any, **named: Any) -> Any:
            seen.append(dict(named.get("attributes") or given[4]))
            return super().should_sample(*given, **named)

    telemetry = Telemetry(sampler=Sampler(Decision.RECORD_AND_SAMPLE))
    run("call", agent(telemetry=telemetry.options).prompt("?", attributes={"tenant": "acme"}))
    assert seen[0]["tenant"] == "acme"


class Word(StrEnum):
    ONE = "one"


class Number(IntEnum):
    ONE = 1


def test_values_are_stored_as_immutable_plain_values() -> None:
    given: dict[str, Any] = {"word": Word.ONE, "number": Number.ONE, "none": [], "odd": "a\ud800", "list": [1]}
    spec = agent().prompt("?", attributes=given)
    given["list"].append(2)
    given["later"] = 1
    found = spec.new_run().attributes
    assert found == {"word": "one", "number": 1, "none": (), "odd": "a?", "list": (1,)}
    assert [type(found[key]) for key in ("word", "number")] == [str, int]
    assert [type(key) for key in agent().prompt("?", attributes={Word.ONE: 1}).new_run().attributes] == [str]


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ("tenant=acme", TypeError, "attributes must be a mapping"),
        ({1: "a"}, ValueError, "keys of 1 to 64"),
        ({"": "a"}, ValueError, "keys of 1 to 64"),
        ({"user id": "a"}, ValueError, "keys of 1 to 64"),
        ({"a=b": "a"}, ValueError, "keys of 1 to 64"),
        ({"k" * 65: "a"}, ValueError, "keys of 1 to 64"),
        ({"error.type": "a"}, ValueError, r"\['error.type'\]: telemetry or the audit trail reserves"),
        ({"gen_ai.user": "a"}, ValueError, "choose another"),
        ({"traced_tools.run.user": "a"}, ValueError, "choose another"),
        ({"digest": "a"}, ValueError, "choose another"),
        ({"text_hash": "a"}, ValueError, "choose another"),
        ({"user": None}, TypeError, r"attributes\['user'\] must be a str, bool, int or float.*not None"),
        ({"user": {"id": 1}}, TypeError, "not dict"),
        ({"user": b"ana"}, TypeError, "not bytes"),
        ({"user": {"a"}}, TypeError, "not set"),
        ({"user": ["a", 1]}, TypeError, "of several types"),
        ({"user": [True, 1]}, TypeError, "of several types"),
        ({"user": [["a"]]}, TypeError, "not list"),
        ({"user": [None]}, TypeError, "not None"),
        ({"user": "a" * 257}, ValueError, "at most 256 characters; it has 257"),
        ({"user": ["a" * 257]}, ValueError, "at most 256 characters; it has 257"),
        ({"user": ["a"] * 33}, ValueError, "at most 32 items; it has 33"),
        ({"user": 2**63}, ValueError, "64 bits"),
        ({"user": float("nan")}, ValueError, "finite"),
        ({"user": [float("inf")]}, ValueError, "finite"),
        ({f"key{index}": 1 for index in range(33)}, ValueError, "at most 32 attributes.*33"),
    ],
    ids=lambda value: repr(value)[:30] if isinstance(value, dict) else None,
)
def test_an_invalid_attribute_raises_an_error_with_the_accepted_values(
    given: Any, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        agent().prompt("?", attributes=given)
    with pytest.raises(error, match=said):
        agent(attributes=given)


def test_attributes_of_client_and_prompt_are_counted_together() -> None:
    client = agent(attributes={f"key{index}": 1 for index in range(32)})
    client.prompt("?", attributes={"key1": 2})
    with pytest.raises(ValueError, match="at most 32 attributes"):
        client.prompt("?", attributes={"another": 2})


@pytest.mark.parametrize("mode", MODES)
def test_a_nested_run_has_the_attributes_of_the_run_around_it_and_its_own(mode: str) -> None:
    watching = Watching()
    inner = ChatClient(ScriptedChatModel(["inner"]), advisors=[watching], attributes={"team": "search", "user": "bot"})

    def ask() -> str:
        """Ask another agent."""
        return inner.prompt("?", attributes={"step": 2}).call().content

    outer = ChatClient(ScriptedChatModel([ToolCall("ask", {}), "done"]), tools=[ask])
    run(mode, outer.prompt("?", attributes={"user": "ana", "tenant": "acme"}))
    assert dict(watching.events[0].attributes or {}) == {"user": "bot", "tenant": "acme", "team": "search", "step": 2}


def test_too_many_attributes_in_a_nested_run_fail_the_tool_that_starts_it() -> None:
    inner = ChatClient(ScriptedChatModel(["inner"]), attributes={f"inner{index}": 1 for index in range(20)})

    def ask() -> str:
        """Ask another agent."""
        return inner.prompt("?").call().content

    outer = ChatClient(ScriptedChatModel([ToolCall("ask", {}), "done"]), tools=[ask])
    response = run("call", outer.prompt("?", attributes={f"outer{index}": 1 for index in range(20)}))
    assert response.tool_results[0].error_type == "ValueError"


def test_an_advisor_reads_attributes_from_the_run() -> None:
    class Reading(Advisor):
        name, order = "reading", 100

        async def advise(self, request: Any, call_next: Any) -> Any:
            seen.append(dict(request.run.attributes))
            return await call_next(request)

    seen: list[Any] = []
    run("call", agent(Reading()).prompt("?", attributes={"tenant": "acme"}))
    assert seen == [{"tenant": "acme"}]


def test_records_cover_attributes_by_their_hash_and_omit_the_field_without_them(tmp_path: Path) -> None:
    with AuditTrail(tmp_path / "audit.db") as trail:
        client = ChatClient(
            ScriptedChatModel([adds(1, 1), "two", adds(2, 2), "four"]), tools=[add], advisors=[AuditAdvisor(trail)]
        )
        client.prompt("?", attributes=GIVEN).call()
        client.prompt("?").call()
    records = [each for each in bodies(tmp_path / "audit.db") if each["kind"] != "checkpoint"]
    assert [each.get("attributes") for each in records] == [GIVEN] * 3 + [None] * 3
    assert [("attributes" in each, "parent_run_id" in each) for each in records[3:]] == [(False, False)] * 3
    assert trail.verify().ok


def test_attributes_survive_a_round_trip_through_an_events_json() -> None:
    watching = Watching()
    run("call", agent(watching).prompt("?", attributes=GIVEN))
    event = watching.one("run_finished")
    assert json.loads(event.model_dump_json())["attributes"] == GIVEN
    assert RunFinished.model_validate_json(event.model_dump_json()) == event
