"""`traced-tools approvals`: decide about waiting calls from a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.approvals.made import around, claimed, kept, paused
from tests.markers import MARKER
from tests.memory.sql_store import execute
from traced_tools import Approve, ChatClient, Reject, ToolCall, tool
from traced_tools.approvals import PendingStore
from traced_tools.cli.app import app
from traced_tools.core import InputRequest, PendingInput, Provide
from traced_tools.testing import ScriptedChatModel

SECRETS = json.dumps({"to": MARKER, "text": "\x1b[2J 🚀"}, ensure_ascii=False)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PendingStore]:
    """A store without runs, which is the default store of the command line."""
    url = f"sqlite:///{tmp_path}/pending.db"
    monkeypatch.setenv("TRACED_TOOLS_PENDING_STORE", url)
    monkeypatch.setenv("COLUMNS", "120")
    with PendingStore(url) as store:
        yield store


def approvals(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["approvals", *arguments])


def printed(*arguments: str) -> str:
    result = approvals(*arguments)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def complaint(*arguments: str, status: int) -> str:
    result = approvals(*arguments)
    assert (result.exit_code, result.stdout) == (status, ""), result.output
    return result.stderr


def test_a_run_is_listed_shown_and_decided_about(store: PendingStore) -> None:
    state = kept(store, paused("a", "b"))
    lines = printed("list").splitlines()
    assert lines[0].split() == [
        "requested",
        "(UTC)",
        "call",
        "run",
        "agent",
        "tool",
        *("waits", "for", "rule"),
        "expires",
        "(UTC)",
    ]
    assert lines[1].split() == ["2027-01-15", "08:00:00", "a", "run-1", "desk", "pay", "approval", "large", "never"]
    assert lines[-1] == "2 calls"
    assert 'arguments    {"amount":5}\n' in printed("show", "a")
    edited = ["--arguments", '{"amount": 7}']
    assert printed("approve", "a", "--by", "ana", *edited) == "approved pay a: run run-1 waits for other decisions\n"
    assert printed("reject", "b", "--by", "ana", "--reason", "no") == "rejected pay b: run run-1 can resume\n"
    assert printed("list") == "no call waits for a decision\n"
    assert claimed(store, state) == {"a": Approve(by="ana", arguments={"amount": 7}), "b": Reject("no", by="ana")}


def test_the_call_of_a_durable_run_has_the_key_of_the_run(store: PendingStore) -> None:
    @tool(requires_approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    kept(store, paused("a"))
    client = ChatClient(ScriptedChatModel([ToolCall("pay", {}, id="b")]), name="desk", tools=[pay], pending_store=store)
    client.submit("Pay.", key="invoice-7")
    client.drive("invoice-7")
    rows = [line.split() for line in printed("list").splitlines()[:3]]
    assert rows[0][4:6] == ["key", "agent"]
    assert {row[2]: row[4] for row in rows[1:]} == {"a": "desk", "b": "invoice-7"}
    assert "key          invoice-7\n" in printed("show", "b")
    assert {call["call_id"]: call["key"] for call in json.loads(printed("list", "--json"))} == {
        "a": None,
        "b": "invoice-7",
    }
    assert {call.call_id: call.key for call in store.pending()} == {"a": None, "b": "invoice-7"}


def test_a_decision_about_a_durable_run_names_the_key_that_drives_it(store: PendingStore) -> None:
    @tool(requires_approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    model = ScriptedChatModel([[ToolCall("pay", {}, id=call_id) for call_id in ("a", "b", "c")], "done"])
    client = ChatClient(model, name="desk", tools=[pay], pending_store=store)
    client.submit("Pay.", key="invoice-7")
    client.drive("invoice-7")
    assert printed("approve", "a", "--by", "ana") == "approved pay a: run invoice-7 waits for other decisions\n"
    decided = json.loads(printed("reject", "b", "--by", "ana", "--reason", "no", "--json"))
    assert (decided["key"], decided["is_last"]) == ("invoice-7", False)
    assert printed("approve", "c", "--by", "ana") == "approved pay c: run invoice-7 can go on: drive it\n"
    assert client.drive("invoice-7").content == "done"


def test_only_show_prints_arguments_and_reasons(store: PendingStore) -> None:
    kept(store, paused("a", "b", arguments=SECRETS, reason=MARKER))
    shown = [printed("show", "a"), printed("show", "a", "--json")]
    assert [each.count(MARKER) for each in shown] == [3, 3]
    assert not any("\x1b" in each for each in shown)
    assert "🚀" in shown[0]
    others = [
        printed("list"),
        printed("list", "--json"),
        printed("approve", "a", "--by", "ana", "--json", "--arguments", SECRETS),
        printed("reject", "b", "--by", MARKER, "--reason", MARKER),
        complaint("approve", "a", "--by", "ana", "--arguments", SECRETS, status=1),
    ]
    assert MARKER not in "".join(others)


def test_calls_of_runs_that_cannot_resume_are_listed_with_the_reason_until_a_retry(store: PendingStore) -> None:
    state = kept(store, paused("a", reason=MARKER))
    store.decide("a", Approve())
    store.refuse(state.to_text(None), "tool_changed")
    lines = printed("list").splitlines()
    assert lines[0] == "no call waits for a decision"
    assert lines[3].split() == ["2027-01-15", "08:00:00", "a", "run-1", "desk", "pay", "tool_changed"]
    assert lines[-1] == "1 call of runs that can't resume"
    (listed,) = json.loads(printed("list", "--json"))
    assert (listed["call_id"], listed["refusal"]) == ("a", "tool_changed")
    assert "refused      tool_changed\n" in printed("show", "a")
    assert printed("retry", "run-1") == "retrying run-1: it resumes once its calls are decided\n"
    assert "no run with the id 'run-1' is refused" in complaint("retry", "run-1", status=1)
    assert printed("list") == "no call waits for a decision\n"


def test_json_has_what_the_inbox_has(store: PendingStore) -> None:
    state = kept(store, paused("a", principal="ana", reason="large"))
    listed = {
        "call_id": "a",
        "run_id": "run-1",
        "key": None,
        "state_id": state.id,
        "agent": "desk",
        "conversation_id": "c-1",
        "tool": "pay",
        "path": [],
        "waits_for": "approval",
        "rule": "large",
        "requested_at": "2027-01-15T08:00:00+00:00",
        "expires_at": None,
        "is_last": True,
    }
    assert json.loads(printed("list", "--json")) == [listed]
    contents = {"principal": "ana", "reason": "large", "intent": "large", "arguments": {"amount": 5}}
    assert json.loads(printed("show", "a", "--json")) == {**listed, **contents}
    decided = {"call_id": "a", "run_id": "run-1", "key": None, "decision": "approved", "is_last": True}
    assert json.loads(printed("approve", "a", "--by", "ana", "--json")) == decided


def test_a_decided_call_is_shown_with_who_decided_what(store: PendingStore) -> None:
    state = kept(store, paused("a", "b"))
    store.decide("a", Approve(by="ana", arguments={"amount": 7}))
    store.decide("b", Reject("too much", by="bob"))
    shown = [line.split(maxsplit=1) for line in printed("show", "a").splitlines()[-4:]]
    assert [shown[0], shown[2], shown[3][0]] == [["decision", "approved"], ["by", "ana"], "with"]
    found = json.loads(printed("show", "b", "--json"))
    assert (found["decision"], found["by"], found["because"]) == ("rejected", "bob", "too much")
    claimed(store, state)
    assert "no call with the id 'a' waits" in complaint("show", "a", status=1)


def test_a_run_is_withdrawn(store: PendingStore) -> None:
    kept(store, paused("a"))
    assert printed("withdraw", "run-1") == "withdrawn run-1: it never resumes\n"
    assert printed("list") == "no call waits for a decision\n"
    assert "no run with the id 'run-1' waits" in complaint("withdraw", "run-1", status=1)


def test_a_list_can_be_selected_and_says_of_how_many_calls_it_is(store: PendingStore) -> None:
    kept(store, paused("a", "b", principal="ana"))
    kept(store, paused("c", agent="shop", run_id="run-2"))
    assert [each["call_id"] for each in json.loads(printed("list", "--principal", "ana", "--json"))] == ["a", "b"]
    assert [each["call_id"] for each in json.loads(printed("list", "--agent", "shop", "--json"))] == ["c"]
    assert printed("list", "--limit", "2").endswith("\nthe oldest 2 of 3 calls; list more with --limit 20\n")
    assert printed("list").endswith("\n3 calls\n")


def test_json_and_the_store_have_all_calls_that_wait(store: PendingStore) -> None:
    kept(store, paused(*(f"call-{number}" for number in range(150))))
    assert len(store.pending()) == len(json.loads(printed("list", "--json"))) == 150
    assert printed("list").endswith("\nthe oldest 100 of 150 calls; list more with --limit 1000\n")
    for number in range(1, 150):
        kept(store, paused(f"other-{number}", run_id=f"other-{number}"))
        store.decide(f"other-{number}", Approve(by="ana"))
    assert len(store.ready()) == 149


def test_a_call_that_cannot_be_decided_is_status_one(store: PendingStore, tmp_path: Path) -> None:
    kept(store, paused("a"))
    printed("approve", "a", "--by", "ana")
    assert "the call 'a' was decided before" in complaint("reject", "a", "--by", "bob", "--reason", "no", status=1)
    assert "no call with the id 'z' waits" in complaint("show", "z", status=1)
    url = f"sqlite:///{tmp_path}/expiring.db"
    with PendingStore(url, expires=timedelta(seconds=1)) as expiring:
        kept(expiring, paused("a", requested_at=0))
    assert "the call 'a' has expired" in complaint("approve", "a", "--by", "ana", "--store", url, status=1)


def test_calls_of_several_runs_with_one_id_need_the_run(store: PendingStore) -> None:
    for run_id in ("run-1", "run-2"):
        kept(store, paused("a", run_id=run_id))
    assert "2 runs that wait have a call with the id 'a'" in complaint("approve", "a", "--by", "ana", status=2)
    assert printed("approve", "a", "--by", "ana", "--run", "run-2") == "approved pay a: run run-2 can resume\n"
    assert store.find("a", run_id="run-1").call_id == "a"


def test_a_mistyped_store_is_not_created(store: PendingStore, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/mistyped.db"
    assert "has no pending runs: pass the path or URL that the client uses" in complaint(
        "list", "--store", url, status=2
    )
    assert not (tmp_path / "mistyped.db").exists()
    other = f"sqlite:///{tmp_path}/other.db"
    execute(other, "CREATE TABLE other (id TEXT)")
    assert "has no pending runs" in complaint("list", "--store", other, status=2)
    assert execute(other, "SELECT name FROM sqlite_master") == [("other",)]
    assert "no pending store for mysql" in complaint("list", "--store", "mysql://host/d", status=2)


@pytest.mark.parametrize(
    "options",
    [("--by", " "), ("--by", "ana", "--arguments", "[1]"), ("--by", "ana", "--arguments", f'{{"a": "{MARKER}'), ()],
    ids=["a blank name", "no object", "no JSON", "no name"],
)
def test_an_invalid_option_is_status_two_and_decides_nothing(store: PendingStore, options: tuple[str, ...]) -> None:
    kept(store, paused("a"))
    assert MARKER not in complaint("approve", "a", *options, status=2)
    assert [each.call_id for each in store.pending()] == ["a"]


def test_a_call_that_waits_for_input_is_shown_with_its_questions_and_answered(store: PendingStore) -> None:
    params = {"message": "How many?", "requestedSchema": {"properties": {"count": {"type": "integer"}}}}
    question = InputRequest(key="count", method="elicitation/create", params=params)
    state = kept(store, paused("a", input=PendingInput(requests=(question,), state="opaque")))
    assert "input" in printed("list")
    shown = printed("show", "a")
    assert "How many?" in shown and "opaque" not in shown
    assert json.loads(printed("show", "a", "--json"))["questions"]["count"]["params"] == params
    assert "waits for input: pass Provide" in complaint("approve", "a", "--by", "ana", status=1)
    assert "is invalid" in complaint("answer", "a", "--by", "ana", "--answers", '{"count": {"count": "x"}}', status=1)
    assert "pass a JSON object" in complaint("answer", "a", "--by", "ana", "--answers", "3", status=2)
    printed_line = printed("answer", "a", "--by", "ana", "--answers", '{"count": {"count": 3}}')
    assert printed_line == "answered pay a: run run-1 can resume\n"
    assert json.loads(printed("show", "a", "--json"))["with"] == {"count": {"count": 3}}
    assert claimed(store, state) == {"a": Provide({"count": {"count": 3}}, by="ana")}


def test_a_call_of_an_agent_is_shown_with_the_path_to_it(store: PendingStore) -> None:
    state = kept(store, around(paused("a", agent="bank")))
    assert "o/a" in printed("list")
    assert ["asked", "by", "ask_bank"] in [line.split() for line in printed("show", "o/a").splitlines()]
    assert json.loads(printed("show", "o/a", "--json"))["path"] == ["ask_bank"]
    assert printed("approve", "o/a", "--by", "ana") == "approved pay o/a: run run-2 can resume\n"
    assert claimed(store, state) == {"o/a": Approve(by="ana")}
