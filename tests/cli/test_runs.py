"""`traced-tools runs`: see, drive and withdraw durable runs from a terminal."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import update
from typer.testing import CliRunner, Result

from tests.markers import MARKER
from traced_tools import Approve, ChatClient, ToolCall, tool
from traced_tools.approvals import PendingStore
from traced_tools.approvals.pending_schema import RUN_RECORDS
from traced_tools.cli.app import app
from traced_tools.errors import ModelError
from traced_tools.testing import ScriptedChatModel

MODULE = '''
from traced_tools import ChatClient, ToolCall, tool
from traced_tools.approvals import PendingStore
from traced_tools.testing import ScriptedChatModel

print("imported")


@tool
def look() -> str:
    """Look."""
    print("called")
    return "seen"


def breaks(*_):
    raise ZeroDivisionError("mArKeR-7f3a")


store = PendingStore("runs.db")
turns = [[ToolCall("look", {}, id="c1")], "mArKeR-7f3a"]
desk = ChatClient(ScriptedChatModel(turns), name="desk", tools=[look], pending_store=store)
broken = desk.replace(model=ScriptedChatModel([breaks]))
'''


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PendingStore]:
    """A store without runs, which is the default store of the command line."""
    monkeypatch.setenv("TRACED_TOOLS_PENDING_STORE", str(tmp_path / "runs.db"))
    monkeypatch.setenv("COLUMNS", "80")
    with PendingStore(tmp_path / "runs.db") as store:
        yield store


def fails(*_: object) -> None:
    raise ModelError("down")


def client_of(store: PendingStore, *turns: object) -> ChatClient:
    @tool
    def look(secret: str) -> str:
        """Look."""
        return MARKER

    @tool(requires_approval=True)
    def pay() -> str:
        """Pay."""
        return MARKER

    return ChatClient(ScriptedChatModel([*turns]), name="desk", tools=[look, pay], pending_store=store)


def submitted(store: PendingStore, key: str, *turns: object) -> ChatClient:
    client = client_of(store, *turns)
    client.submit(MARKER, key=key, principal="ana")
    return client


def waiting(store: PendingStore, key: str) -> None:
    """Keep a run that has called a tool and waits for a person, after a life that has failed."""
    look, pay = ToolCall("look", {"secret": MARKER}, id="c1"), ToolCall("pay", {}, id="c2")
    client = submitted(store, key, [look], fails)
    with pytest.raises(ModelError):
        client.drive(key)
    client_of(store, [pay]).drive(key)


def runs(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["runs", *arguments])


def printed(*arguments: str) -> str:
    result = runs(*arguments)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def complaint(*arguments: str, status: int) -> str:
    result = runs(*arguments)
    assert (result.exit_code, result.stdout) == (status, ""), result.output
    return result.stderr


def test_runs_are_listed_with_those_that_have_not_changed_for_long_first(store: PendingStore) -> None:
    submitted(store, "first", "done")
    submitted(store, "second", "done").drive("second")
    lines = printed("list").splitlines()
    assert lines[0].split() == ["changed", "(UTC)", "key", "agent", "status", "lives"]
    assert [line.split()[2:] for line in lines[1:3]] == [
        ["first", "desk", "submitted", "0"],
        ["second", "desk", "finished", "1"],
    ]
    assert lines[-1] == "2 runs"
    assert max(map(len, lines)) <= 80
    assert printed("list", "--limit", "1").endswith("the oldest 1 of more than 1 runs; list more with --limit 10\n")


@pytest.mark.parametrize(
    "options",
    [("--status", "finished"), ("--agent", "shop"), ("--principal", "bob"), ("--status", "finished", "--limit", "9")],
)
def test_a_list_can_be_selected(store: PendingStore, options: tuple[str, ...]) -> None:
    submitted(store, "first", "done")
    shop = client_of(store, "done").replace(name="shop")
    shop.submit("Go.", key="second", principal="bob")
    shop.drive("second")
    assert [run["key"] for run in json.loads(printed("list", *options, "--json"))] == ["second"]


def test_an_empty_list_and_an_unknown_status_are_told(store: PendingStore) -> None:
    submitted(store, "k", "done")
    assert printed("list", "--status", "failed") == "no such run\n"
    assert "must be one of submitted, running" in complaint("list", "--status", "lost", status=2)


def test_a_run_is_shown_with_a_line_for_each_record_and_no_content(store: PendingStore) -> None:
    waiting(store, "k")
    store.decide("c2", Approve(by=MARKER))
    client_of(store, MARKER).drive("k")
    shown = printed("show", "k")
    facts, _, table = shown.partition("\n\n")
    assert [line.split()[:2] for line in facts.splitlines()[:5]] == [
        ["run", "k"],
        ["agent", "desk"],
        ["principal", "ana"],
        ["status", "finished"],
        ["lives", "1"],
    ]
    rows = [line.split()[3:] for line in table.splitlines()[1:] if line[:1].strip()]
    assert "lives        1 since it was submitted or last waited\n" in facts
    assert rows[0] == ["0", "submitted"]
    assert [row for row in rows if row[1] != "life_began"] == [
        ["0", "submitted"],
        ["1", "answered", "iteration", "1:", "c1"],
        ["1", "call_began", "c1", "look"],
        ["1", "call_ended", "c1", "look", "ok"],
        ["1", "life_failed", "traced_tools.errors.ModelError"],
        ["2", "answered", "iteration", "2:", "c2"],
        ["2", "paused", "c2"],
        ["3", "claimed", "c2"],
        ["3", "call_began", "c2", "pay"],
        ["3", "call_ended", "c2", "pay", "ok"],
        ["3", "finished", "answered"],
    ]
    assert max(map(len, shown.splitlines())) <= 80
    assert MARKER not in shown + printed("show", "k", "--json") + printed("list") + printed("list", "--json")


def test_a_run_that_waits_is_shown_as_decided_once_all_of_its_calls_are(store: PendingStore) -> None:
    waiting(store, "k")
    waiting(store, "other")
    run_ids = {call.key: call.run_id for call in store.pending()}
    assert "status       waiting\n" in printed("show", "k")
    store.decide("c2", Approve(by="ana"), run_id=run_ids["k"])
    assert "status       waiting, decided\n" in printed("show", "k")
    assert "status       waiting\n" in printed("show", "other")
    assert [line.split()[3:] for line in printed("list", "--status", "waiting").splitlines()[1:3]] == [
        ["desk", "waiting,", "decided", "0"],
        ["desk", "waiting", "0"],
    ]
    assert [run["is_decided"] for run in json.loads(printed("list", "--json"))] == [True, False]
    assert json.loads(printed("show", "k", "--json"))["is_decided"] is True
    client_of(store, "done").drive("k")
    assert "status       finished\n" in printed("show", "k")


def test_json_has_a_run_with_its_records(store: PendingStore) -> None:
    waiting(store, "k")
    [listed] = json.loads(printed("list", "--json"))
    assert listed.keys() == {"key", "agent", "status", "is_decided", "lives", "submitted_at", "changed_at"}
    run = json.loads(printed("show", "k", "--json"))
    assert {name: run[name] for name in listed} == listed
    assert run["principal"] == "ana"
    answer = next(record for record in run["records"] if record["kind"] == "answered")
    assert (answer["life"], answer["iteration"], answer["call_ids"]) == (1, 1, ["c1"])
    assert [record["run_id"] is not None for record in run["records"][:2]] == [False, True]


def test_a_record_that_cannot_be_read_and_a_deleted_log_are_shown_as_such(store: PendingStore) -> None:
    submitted(store, "k", "done").drive("k")
    with store._database.transaction() as connection:
        connection.execute(update(RUN_RECORDS).where(RUN_RECORDS.c.number == 1).values(body=f'"{MARKER}"'))
    assert [record["kind"] for record in json.loads(printed("show", "k", "--json"))["records"]] == [
        "submitted",
        "unreadable",
        "finished",
    ]
    store.delete_spent()
    assert printed("show", "k").endswith("the log was deleted\n")


def test_a_name_that_a_model_made_up_is_not_shown(store: PendingStore) -> None:
    submitted(store, "k", [ToolCall(MARKER, {}, id="c1")], "done").drive("k")
    assert "c1 unknown_tool" in printed("show", "k")
    assert MARKER not in printed("show", "k", "--json")


def test_a_run_that_waits_is_withdrawn_with_its_calls(store: PendingStore) -> None:
    waiting(store, "k")
    assert printed("withdraw", "k") == "withdrawn k: it never goes on\n"
    assert (store.pending(), client_of(store).drive("k").status) == ([], "withdrawn")
    assert complaint("withdraw", "k", status=1) == "runs: the run k is withdrawn\n"


def test_an_unknown_key_is_status_one(store: PendingStore) -> None:
    submitted(store, "k", "done")
    for command in ("show", "withdraw"):
        assert complaint(command, "z", status=1) == "runs: no run has the key z\n"


def test_a_mistyped_store_is_not_created(store: PendingStore, tmp_path: Path) -> None:
    mistyped = str(tmp_path / "mistyped.db")
    for arguments in (("list",), ("show", "k"), ("withdraw", "k")):
        assert "has no pending runs" in complaint(*arguments, "--store", mistyped, status=2)
    assert not (tmp_path / "mistyped.db").exists()


def drive(where: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "traced-tools"), "runs", "drive", *arguments]
    return subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def module(tmp_path: Path) -> Path:
    (tmp_path / "agents.py").write_text(MODULE)
    return tmp_path


@pytest.mark.slow
def test_a_run_is_driven_by_the_client_of_a_module_and_only_its_status_is_printed(
    store: PendingStore, module: Path
) -> None:
    submitted(store, "k", "unused")
    run = drive(module, "k", "--client", "agents:desk")
    assert (run.returncode, run.stdout) == (0, "finished k: answered\n")
    assert ("imported" in run.stderr, "called" in run.stderr, MARKER in run.stderr) == (True, True, False)
    run = drive(module, "k", "--client", "agents:desk", "--json")
    assert json.loads(run.stdout) == {"key": "k", "status": "finished", "stop_reason": "answered"}


@pytest.mark.slow
def test_an_error_that_ends_a_life_is_one_line_without_its_text(store: PendingStore, module: Path) -> None:
    submitted(store, "k", "unused")
    run = drive(module, "k", "--client", "agents:broken")
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.splitlines()[-1] == "runs: the life of the run k has ended with ZeroDivisionError"
    assert MARKER not in run.stderr
    assert [kept.status for kept in store.run_logs.runs()] == ["interrupted"]


@pytest.mark.slow
def test_what_cannot_be_driven_is_told(store: PendingStore, module: Path) -> None:
    submitted(store, "k", "unused")
    store.run_logs.withdraw("k")
    run = drive(module, "k", "--client", "agents:desk")
    assert (run.returncode, run.stdout) == (1, "withdrawn k\n")
    run = drive(module, "z", "--client", "agents:desk")
    assert (run.returncode, "no run of the agent 'desk' has the key 'z'" in run.stderr) == (1, True)
    run = drive(module, "k", "--client", "agents:store")
    assert (run.returncode, "agents:store is a PendingStore: pass a ChatClient" in run.stderr) == (2, True)
