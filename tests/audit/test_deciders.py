"""The name of who decided about a call is content: a trail stores it as it stores arguments."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.audit.commanded import printed
from tests.audit.trails import KEY
from tests.captured import Telemetry
from tests.markers import MARKER
from tests.waiting import PATIENCE
from traced_tools import ApprovalAdvisor, Approve, AuditAdvisor, AuditTrail, ChatClient, ToolCall, tool
from traced_tools.audit.writing import mirror
from traced_tools.audit.writing.record_builder import ContentMode
from traced_tools.observe import names
from traced_tools.testing import ScriptedChatModel

PSEUDONYM = r"pseudonym:[0-9a-f]{16}"


def approved_by(name: str, path: Path, content: ContentMode, *, capture: bool = True) -> Telemetry:
    """Record two calls that somebody approves, and return what is emitted meanwhile."""

    @tool(requires_approval=True, capture=capture)
    def pay() -> str:
        """Pay."""
        return "paid"

    telemetry = Telemetry()
    with AuditTrail(path, key=KEY, content=content, telemetry=telemetry.options) as trail:
        model = ScriptedChatModel([[ToolCall("pay", {}, id="c1"), ToolCall("pay", {}, id="c2")], "x"])
        approver = ApprovalAdvisor(lambda request: Approve(by=name))
        advisors = [AuditAdvisor(trail), approver]
        ChatClient(model, tools=[pay], advisors=advisors, telemetry=telemetry.options).prompt("?").call()
    assert mirror.flush(PATIENCE)
    return telemetry


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
