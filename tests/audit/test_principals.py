"""On whose behalf calls are, in an audit trail: recorded with intents, found by name, and content as names are."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.audit.commanded import printed, story
from tests.audit.made import write
from tests.audit.trails import KEY
from tests.markers import MARKER
from tests.modes import MODES, run
from traced_tools import (
    Approve,
    AuditAdvisor,
    AuditTrail,
    ChatClient,
    ToolCall,
    tool,
)
from traced_tools.audit import AuditReader, verify
from traced_tools.audit.keys import KEY_VARIABLE
from traced_tools.audit.writing.record_builder import ContentMode
from traced_tools.errors import AuditError, ConfigurationError
from traced_tools.observe.settings import PSEUDONYM_KEY
from traced_tools.testing import ScriptedChatModel

PSEUDONYM = r"pseudonym:[0-9a-f]{16}"
PEOPLE = ("ana", "bob", None)


def recorded(
    path: Path, content: ContentMode = "digest", *, mode: str = "call", key: bytes | None = KEY, capture: bool = True
) -> Path:
    """Record one call for each of two people, through an agent that asks another, and one for nobody."""

    @tool(capture=capture)
    def pay() -> str:
        """Pay."""
        return "paid"

    with AuditTrail(path, key=key, content=content) as trail:
        audit = AuditAdvisor(trail)
        for person in PEOPLE:
            billing = ChatClient(
                ScriptedChatModel([[ToolCall("pay", {}, id="c1")], "x"]), name="billing", tools=[pay], advisors=[audit]
            )
            asks = ScriptedChatModel([[ToolCall("ask_billing", {"question": "?"}, id="c0")], "x"])
            planner = ChatClient(asks, name="planner", tools=[billing.as_tool("ask_billing", "Ask.")], advisors=[audit])
            run(mode, planner.prompt("?", principal=person))
    return path


def listed(path: Path, *options: str, status: int = 0) -> list[Any]:
    found: list[Any] = json.loads(printed("list", "--json", *options, "--store", path, status=status))
    return found


@pytest.mark.parametrize("mode", MODES)
def test_an_intent_names_who_asked_and_the_actors_in_between(tmp_path: Path, mode: str) -> None:
    calls = AuditReader(recorded(tmp_path / "a.db", mode=mode)).calls(agent="billing")
    assert [call.actors for call in calls] == [("agent:planner", "tool:ask_billing")] * 3
    nobody, bob, ana = (call.principal for call in calls)
    assert nobody is None
    assert re.fullmatch(PSEUDONYM, str(ana))
    assert ana != bob
    assert verify(tmp_path / "a.db").ok


@pytest.mark.parametrize("content", ["digest", "full"])
def test_a_filter_finds_the_calls_of_a_principal_by_name_and_by_pseudonym(
    tmp_path: Path, content: ContentMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY.decode())
    path = recorded(tmp_path / "a.db", content)
    reader = AuditReader(path)
    (nested, _) = calls = reader.calls(principal="ana")
    shown = {call.principal for call in calls}
    assert shown == {"ana"} if content == "full" else re.fullmatch(PSEUDONYM, *map(str, shown))
    digest = nested.fields("intent")["principal"]["digest"]
    assert reader.calls(principal=f"pseudonym:{digest[:16]}") == calls
    assert reader.calls(principal="eve") == reader.calls(principal="pseudonym:0123456789abcdef") == []
    assert len(reader.calls(principal="ana", limit=1)) == 1
    records = [*reader.records(principal="ana")]
    assert len(records) == 6  # an intent, a decision and an outcome of each call
    assert {each.fields["run_id"] for each in records} == {call.run_id for call in calls}
    assert [call["run_id"] for call in listed(path, "--principal", "ana")] == [call.run_id for call in calls]
    with AuditTrail(path, key=KEY) as trail:
        assert [call.run_id for call in trail.query(principal="ana")] == [call.run_id for call in calls]


def test_the_key_of_the_application_for_pseudonyms_finds_a_name_without_the_key_of_the_trail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PSEUDONYM_KEY, "a key of 16 bytes or more")
    path = recorded(tmp_path / "a.db")
    assert len(AuditReader(path).calls(principal="ana")) == 2
    assert AuditReader(path).calls(principal="eve") == []


@pytest.mark.parametrize("use", [lambda reader: reader.calls(principal="ana"), lambda r: [*r.records(principal="ana")]])
def test_a_name_without_a_key_or_with_another_key_is_an_error_and_not_an_empty_list(
    tmp_path: Path,
    use: Callable[[AuditReader], Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = recorded(tmp_path / "a.db")
    with pytest.raises(ConfigurationError, match=r"can't be searched .*TRACED_TOOLS_AUDIT_KEY"):
        use(AuditReader(path))
    printed("list", "--principal", "ana", "--store", path, status=2)
    monkeypatch.setenv(KEY_VARIABLE, "another key of 16 bytes")
    with pytest.raises(AuditError, match="wrong audit key") as raised:
        use(AuditReader(path))
    del raised
    assert not caplog.records  # SQLAlchemy logs a cursor that outlives its connection


def test_the_first_run_of_a_process_has_the_pseudonym_of_later_ones_with_a_key_beside_the_store(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.db", key=None)
    found = {call["principal"] for call in listed(path, "--principal", "ana")}
    assert len(found) == 1
    assert not any("pseudonym" in (call.fields("intent").get("principal") or {}) for call in AuditReader(path).calls())


def test_show_exports_and_receipts_have_who_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY.decode())
    path = recorded(tmp_path / "a.db", "full")
    (call,) = AuditReader(path).calls(principal="ana", agent="billing")
    shown = printed("show", call.run_id, "--store", path)
    assert "on behalf of ana" in shown
    assert "agent:planner > tool:ask_billing" in shown
    run = json.loads(printed("show", call.run_id, "--json", "--store", path))
    assert (run["principal"], run["actors"]) == ("ana", ["agent:planner", "tool:ask_billing"])
    rows = csv.DictReader(io.StringIO(printed("export", "--format", "csv", "--principal", "ana", "--store", path)))
    intents = [(row["principal"], row["actors"]) for row in rows if row["kind"] == "intent"]
    assert intents == [("ana", ""), ("ana", '["agent:planner", "tool:ask_billing"]')]
    receipt = tmp_path / "receipt"
    printed("receipt", "c1", "--run", call.run_id, "--output", receipt, "--store", path)
    assert "ana" not in json.loads(receipt.read_text())
    assert re.search(rf"principal {PSEUDONYM}", printed("verify-receipt", receipt))


@pytest.mark.parametrize("content", ["digest", "full"])
def test_list_shows_on_whose_behalf_calls_are_as_recorded(
    tmp_path: Path, content: ContentMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # so that nothing is cut
    path = recorded(tmp_path / "a.db", content)
    principals = {call.principal for call in AuditReader(path).calls()} - {None}
    headings, *rows = printed("list", "--store", path).splitlines()
    place = slice(headings.index("principal"), headings.index("agent"))
    assert {row[place].strip() for row in rows[:6]} == {*principals, ""}
    assert principals == {"ana", "bob"} if content == "full" else not principals & {"ana", "bob"}
    assert "principal" not in printed("list", "--store", write(tmp_path / "b.db", story()))
    for columns in (110, 80):
        monkeypatch.setenv("COLUMNS", str(columns))
        text = printed("list", "--store", path)
        assert max(map(len, text.splitlines())) <= columns
        assert ("principal" in text) == (columns == 110)


def test_match_and_erase_know_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY.decode())
    path = recorded(tmp_path / "a.db", "full")
    (call,) = AuditReader(path).calls(principal="ana", agent="billing")
    for name in ("ana", "bob"):
        (tmp_path / name).write_text(f"{name}\n")
    place = ("--run", call.run_id, "--store", path)
    assert "the principal was this" in printed("match", "c1", "--principal", tmp_path / "ana", *place)
    assert "the principal was NOT this" in printed("match", "c1", "--principal", tmp_path / "bob", *place, status=1)
    why = ("--requested-by", "ticket", "--reason", "asked", "--content", "principal")
    assert "erased 1 text" in printed("erase", call.run_id, *why, "--store", path)
    (again,) = AuditReader(path).calls(principal="ana", agent="billing")
    assert re.fullmatch(PSEUDONYM, str(again.principal))
    assert verify(path).ok


def test_a_tool_with_capture_disabled_does_not_keep_the_principal_out_of_a_trail_of_texts(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.db", "full", capture=False)
    assert [call.principal for call in AuditReader(path).calls(agent="billing")] == [None, "bob", "ana"]


def test_a_trail_of_digests_does_not_hold_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.audit.test_principals.PEOPLE", (MARKER,))
    path = recorded(tmp_path / "a.db")
    assert MARKER.encode() not in path.read_bytes()


def test_records_of_releases_that_recorded_nobody_verify_and_match_no_principal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY.decode())
    path = tmp_path / "a.db"
    write(path, story())
    assert verify(path).ok
    assert {(call.principal, call.actors) for call in AuditReader(path).calls()} == {(None, ())}
    assert AuditReader(path).calls(principal="ana") == [*AuditReader(path).records(principal="ana")] == []


@pytest.mark.parametrize("mode", MODES)
def test_a_resumed_run_has_the_principal_and_the_actors_that_it_paused_with(tmp_path: Path, mode: str) -> None:
    @tool(requires_approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    path = tmp_path / "a.db"
    with AuditTrail(path, key=KEY, content="full") as trail:
        billing = ChatClient(
            ScriptedChatModel([[ToolCall("pay", {}, id="c1")], "x"]),
            name="billing",
            tools=[pay],
            advisors=[AuditAdvisor(trail)],
            principal="service",
        )
        asks = ScriptedChatModel([[ToolCall("ask_billing", {"question": "?"}, id="c0")], "x"])
        tools = [billing.as_tool("ask_billing", "Ask.")]
        planner = ChatClient(asks, name="planner", tools=tools, advisors=[AuditAdvisor(trail)], principal="service")
        paused = run(mode, planner.prompt("?", principal="ana"))
        assert paused.state is not None
        done = run(mode, planner.resume(paused.state, {each.call_id: Approve(by="eve") for each in paused.pending}))
        assert done.content == "x"
    calls = AuditReader(path).calls(agent="billing")
    assert [(call.principal, call.actors) for call in calls] == [("ana", ("agent:planner", "tool:ask_billing"))] * 2
    assert {call.principal for call in AuditReader(path).calls(agent="planner")} == {"ana"}


@pytest.mark.parametrize("principal", ["", " ", "a" * 257])
def test_a_search_for_what_no_principal_can_be_is_an_error_that_quotes_nothing(principal: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="principal must") as error:
        AuditReader(tmp_path / "audit.db").calls(principal=principal)
    assert "aaa" not in str(error.value)
