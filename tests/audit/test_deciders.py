"""The name of who decided about a call is content: a trail stores it as it stores arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.audit.commanded import printed
from tests.audit.trails import KEY
from tests.captured import Telemetry
from tests.markers import MARKER
from tests.waiting import PATIENCE
from traced_tools import Advisor, ApprovalAdvisor, Approve, AuditAdvisor, AuditTrail, ChatClient, ToolCall, tool
from traced_tools.audit import verify
from traced_tools.audit.writing import mirror
from traced_tools.audit.writing.record_builder import ContentMode
from traced_tools.observe import content as module
from traced_tools.observe import names
from traced_tools.observe.settings import PSEUDONYM_KEY
from traced_tools.observe.typed_events.types import Event, ToolDecided
from traced_tools.testing import ScriptedChatModel

PSEUDONYM = r"pseudonym:[0-9a-f]{16}"


def approved_by(
    name: str,
    path: Path,
    content: ContentMode,
    *,
    capture: bool = True,
    key: bytes = KEY,
    others: Sequence[Advisor] = (),
) -> Telemetry:
    """Record two calls that somebody approves, and return what is emitted meanwhile."""

    @tool(requires_approval=True, capture=capture)
    def pay() -> str:
        """Pay."""
        return "paid"

    telemetry = Telemetry()
    with AuditTrail(path, key=key, content=content, telemetry=telemetry.options) as trail:
        model = ScriptedChatModel([[ToolCall("pay", {}, id="c1"), ToolCall("pay", {}, id="c2")], "x"])
        approver = ApprovalAdvisor(lambda request: Approve(by=name))
        advisors = [AuditAdvisor(trail), approver, *others]
        ChatClient(model, tools=[pay], advisors=advisors, telemetry=telemetry.options).prompt("?").call()
    assert mirror.flush(PATIENCE)
    return telemetry


class Listening(Advisor):
    """Collects who decided, as typed events say it."""

    name = "listening"
    order = 1000

    def __init__(self) -> None:
        self.people: list[str | None] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, ToolDecided):
            self.people.append(event.by)


def people_of(path: Path) -> list[str]:
    return [each["by"] for each in json.loads(printed("list", "--json", "--store", path))]


@pytest.mark.parametrize("content", ["digest", "full"])
def test_a_trail_shows_the_name_only_if_it_stores_texts(tmp_path: Path, content: ContentMode) -> None:
    approved_by("ana", tmp_path / "a.db", content)
    first, second = people_of(tmp_path / "a.db")
    assert first == second
    assert first == "ana" if content == "full" else re.fullmatch(PSEUDONYM, first)
    assert f"approved by {first}" in printed("show", run_of(tmp_path / "a.db"), "--store", tmp_path / "a.db")
    assert f",{first}," in printed("export", "--format", "csv", "--store", tmp_path / "a.db")


def run_of(path: Path) -> str:
    run: str = json.loads(printed("list", "--json", "--store", path))[0]["run_id"]
    return run


def test_a_tool_with_capture_disabled_keeps_the_name_out_of_a_trail_that_stores_texts(tmp_path: Path) -> None:
    approved_by(MARKER, tmp_path / "a.db", "full", capture=False)
    assert MARKER.encode() not in (tmp_path / "a.db").read_bytes()
    assert re.fullmatch(PSEUDONYM, people_of(tmp_path / "a.db")[0])


def test_match_proves_and_refutes_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACED_TOOLS_AUDIT_KEY", KEY.decode())
    approved_by("ana", tmp_path / "a.db", "digest")
    (tmp_path / "ana").write_text("ana\n")
    (tmp_path / "bob").write_text("bob\n")
    place = ("--store", tmp_path / "a.db")
    assert "decided was this" in printed("match", "c1", "--by", tmp_path / "ana", *place)
    assert "decided was NOT this" in printed("match", "c1", "--by", tmp_path / "bob", *place, status=1)


@pytest.mark.parametrize("content", ["digest", "full"])
def test_log_records_of_a_trail_have_a_pseudonym_whatever_it_stores(tmp_path: Path, content: ContentMode) -> None:
    telemetry = approved_by(MARKER, tmp_path / "a.db", content)
    decisions = telemetry.events_named(names.AUDIT_DECISION_EVENT.name)
    assert len(decisions) == 2
    assert MARKER not in str([(each.log_record.body, each.log_record.attributes) for each in telemetry.records])
    assert all(re.fullmatch(PSEUDONYM, str(each.attributes[names.APPROVAL_BY])) for each in decisions)


@pytest.mark.parametrize("key", [None, "a key of 16 bytes or more"], ids=["the trail's key", "a key of its own"])
@pytest.mark.parametrize("content", ["digest", "full"])
def test_a_person_has_one_pseudonym_in_spans_events_records_and_their_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: ContentMode, key: str | None
) -> None:
    monkeypatch.delenv(PSEUDONYM_KEY, raising=False)
    if key is not None:
        monkeypatch.setenv(PSEUDONYM_KEY, key)
    listener = Listening()
    telemetry = approved_by("ana", tmp_path / "a.db", content, others=[listener])
    emitted = [each.attributes or {} for each in telemetry.spans]
    emitted += [each.log_record.attributes or {} for each in telemetry.records]
    found = [*(each.get(names.APPROVAL_BY) for each in emitted), *listener.people]
    shown = [] if content == "full" else people_of(tmp_path / "a.db")
    (one,) = {*shown, *filter(None, found)}
    assert re.fullmatch(PSEUDONYM, str(one))
    assert len(listener.people) == 2
    assert len([*filter(None, found)]) >= 8
    assert verify(tmp_path / "a.db").ok


def test_two_trails_with_other_keys_have_the_pseudonym_of_the_first(tmp_path: Path) -> None:
    approved_by("ana", tmp_path / "a.db", "digest")
    approved_by("ana", tmp_path / "b.db", "digest", key=b"another key of 16 bytes")
    assert {*people_of(tmp_path / "a.db")} == {*people_of(tmp_path / "b.db")}


def test_a_pseudonym_is_the_same_in_another_process_with_the_key_of_the_trail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    approved_by("ana", tmp_path / "a.db", "digest")
    monkeypatch.setattr(module, "_of_trail", None)
    monkeypatch.setattr(module, "_KEY_OF_PROCESS", b"what another process has")
    approved_by("ana", tmp_path / "b.db", "digest")
    assert {*people_of(tmp_path / "a.db")} == {*people_of(tmp_path / "b.db")}
