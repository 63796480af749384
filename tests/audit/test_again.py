"""The records of a tool that an advisor reruns: its last outcome, and the earlier ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from tests.audit.commanded import audit
from tests.audit.made import Chain, content, write
from tests.audit.postgresql import WRITER, Database
from tests.audit.trails import KEY
from traced_tools import Advisor, AuditAdvisor, AuditTrail, ChatClient, ToolCall, tool
from traced_tools.audit.digests import AuditKey
from traced_tools.audit.reading.matching import match
from traced_tools.audit.reading.reader import AuditedCall, AuditReader
from traced_tools.audit.schema import RECORDS
from traced_tools.testing import ScriptedChatModel

RUN: dict[str, Any] = {"run_id": "run-1", "iteration": 1, "batch_index": 0, "agent": "planner", "tool": "pay"}
OTHER = content("other")


def again(chain_id: str = "chain-a", last: str = "ok") -> Chain:
    """A tool that failed, and ran again with other arguments."""
    chain = Chain(chain_id)
    chain.call(outcome="error", error_type="OSError", **RUN)
    chain.add("decision", **RUN, decision="allowed", arguments=OTHER)
    chain.add("outcome", **RUN, outcome=last, duration=0.5)
    return chain


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.db"


def only_call(path: Path, *chains: Chain) -> AuditedCall:
    (call,) = AuditReader(write(path, *chains)).run("run-1").calls
    return call


def places(records: list[Any] | tuple[Any, ...]) -> list[tuple[str, int]]:
    return [(record.chain_id, record.sequence) for record in records]


def test_the_last_outcome_and_the_last_repeat_of_a_decision_count(path: Path) -> None:
    call = only_call(path, again())
    assert (call.state, call.fields("decision")["arguments"], call.conflicting) == ("ok", OTHER, ())
    assert [(each.kind, each.sequence) for each in call.earlier] == [("decision", 2), ("outcome", 3)]
    assert [each.sequence for each in call.records] == [1, 2, 4, 3, 5]


def test_a_different_decision_conflicts_even_if_the_tool_ran_twice(path: Path) -> None:
    chain = again()
    chain.add("decision", **RUN, decision="denied")
    call = only_call(path, chain)
    assert (call.fields("decision")["decision"], call.fields("decision")["sequence"]) == ("allowed", 4)
    assert places(call.conflicting) == [("chain-a", 6)]


def test_chains_that_record_the_same_tool_runs_do_not_conflict(path: Path) -> None:
    call = only_call(path, again(), again("chain-b"))
    assert (call.conflicting, places(call.records)[-1]) == ((), ("chain-a", 5))


def test_a_chain_that_records_a_different_outcome_conflicts(path: Path) -> None:
    call = only_call(path, again(last="timeout"), again("chain-b"))
    assert (call.state, places(call.conflicting)) == ("timeout", [("chain-b", 5)])


def test_a_tool_that_ran_before_its_intent_was_on_record_stays_late(path: Path) -> None:
    chain = Chain()
    chain.add("intent", **RUN)
    chain.add("decision", **RUN, decision="allowed", intent_late=True)
    chain.add("decision", **RUN, decision="allowed", arguments=OTHER)
    assert only_call(path, chain).is_late


def test_a_call_is_found_by_its_last_outcome(path: Path) -> None:
    reader = AuditReader(write(path, again()))
    for decision in (None, "allowed"):
        assert reader.calls(outcome="error", decision=decision) == []
        assert [call.state for call in reader.calls(outcome="ok", decision=decision)] == ["ok"]


def test_calls_whose_last_outcome_differs_do_not_count_towards_the_limit(path: Path) -> None:
    chain = Chain()
    chain.call(run_id="run-0", outcome="error")
    for number in range(1, 4):
        chain.call(run_id=f"run-{number}", outcome="error")
        chain.add("outcome", **{**RUN, "run_id": f"run-{number}"}, outcome="ok")
    assert [call.run_id for call in AuditReader(write(path, chain)).calls(outcome="error", limit=1)] == ["run-0"]


def test_records_are_found_by_any_outcome_of_their_call(path: Path) -> None:
    reader = AuditReader(write(path, again()))
    for outcome in ("error", "ok"):
        assert [record.sequence for record in reader.records(outcome=outcome)] == [1, 2, 3, 4, 5]


def twice() -> Chain:
    """Calls that two audits of one trail recorded: five that failed twice, five that are unfinished."""
    chain = Chain()
    for number in range(10):
        call = {**RUN, "run_id": f"run-{number}"}
        ended = [("outcome", {"outcome": "error"})] * 2 if number % 2 else []
        for kind, fields in (("intent", {}), ("decision", {"decision": "allowed"}), *ended):
            row = chain.add(kind, **call, **fields)
            chain.add(kind, **call, **fields, time=row["time"])
    return chain


@pytest.fixture(params=["file", "server"])
def both(request: pytest.FixtureRequest, path: Path) -> Iterator[AuditReader]:
    if request.param == "file":
        yield AuditReader(write(path, twice()))
        return
    database: Database = request.getfixturevalue("database")
    request.getfixturevalue("emptied")
    engine = create_engine(database.url(WRITER))
    with engine.begin() as connection:
        connection.execute(RECORDS.insert(), twice().rows)
    engine.dispose()
    yield AuditReader(database.url("my_auditor"))


@pytest.mark.parametrize(
    ("wanted", "runs"),
    [
        ({}, range(9, -1, -1)),
        ({"decision": "allowed"}, range(9, -1, -1)),
        ({"outcome": "error"}, range(9, 0, -2)),
        ({"outcome": "error", "decision": "allowed"}, range(9, 0, -2)),
        ({"outcome": "unfinished"}, range(8, -1, -2)),
    ],
    ids=str,
)
def test_a_call_is_listed_once_however_many_records_it_has(
    both: AuditReader, wanted: dict[str, Any], runs: range
) -> None:
    expected = [f"run-{number}" for number in runs]
    for limit in (3, 100):
        assert [call.run_id for call in both.calls(**wanted, limit=limit)] == expected[:limit]


def test_the_result_that_is_matched_is_the_last_one(path: Path) -> None:
    key = AuditKey(KEY)
    chain = Chain()
    chain.call(call_id="call-1", outcome="error", result=key.content("down"))
    chain.add("outcome", **RUN, call_id="call-1", outcome="ok", result=key.content("paid"))
    write(path, chain)
    assert match(path, "call-1", "paid", content="result", key=KEY)
    assert not match(path, "call-1", "down", content="result", key=KEY)


def test_show_lists_each_run_of_the_tool(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    write(path, again())
    shown = [line.split("── ")[-1] for line in audit("show", "run-1", "--store", path).stdout.splitlines()]
    assert shown[-5:] == [
        "decision     2026-01-01 12:00:02.000  allowed",
        "decision     2026-01-01 12:00:04.000  allowed",
        f"ran with     not stored (digest {OTHER['digest'][:12]}, {OTHER['size']} bytes)",
        "try 1        2026-01-01 12:00:03.000  error, OSError, after 250.0 ms",
        "outcome      2026-01-01 12:00:05.000  ok, after 500.0 ms",
    ]
    (call,) = json.loads(audit("show", "run-1", "--json", "--store", path).stdout)["calls"]
    assert (call["outcome"], [record["sequence"] for record in call["records"]]) == ("ok", [1, 2, 4, 3, 5])


class Again(Advisor):
    name, order = "again", 600

    async def advise_tool(self, call: Any, call_next: Any) -> Any:
        result = await call_next(call)
        return result if result.outcome == "ok" else await call_next(call)


def test_two_audit_advisors_record_both_runs_of_a_repeated_tool(path: Path) -> None:
    failures = [ConnectionError()]

    @tool
    def pay() -> str:
        """Pay."""
        if failures:
            raise failures.pop()
        return "paid"

    with closing(AuditTrail(path, key=KEY)) as trail:
        audits = [AuditAdvisor(trail), AuditAdvisor(trail, name="second", order=450)]
        model = ScriptedChatModel([ToolCall("pay", {}), "Paid."])
        ChatClient(model, tools=[pay], advisors=[*audits, Again()]).prompt("Pay.").call()
        (call,) = trail.query(outcome="ok", limit=1)
        assert trail.query(outcome="error") == []
    assert (call.state, call.conflicting, [each.kind for each in call.earlier]) == ("ok", (), ["outcome"])
