"""The store in which runs wait for approval: its inbox, decisions, claims, expiry, deletion and broken rows."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from tests.approvals.made import ARGUMENTS, NOW, claimed, kept, paused
from tests.markers import MARKER, everything
from tests.memory.sql_store import execute
from tests.sample_tools import add
from tests.sweeps import check_each
from tests.waiting import patiently
from traced_tools import Approve, ChatClient, ConfigurationError, Reject, ToolCall, TracedToolsError
from traced_tools.approvals import PendingStore, WaitingApproval
from traced_tools.approvals import pending_queries as queries
from traced_tools.core.approval import Denied
from traced_tools.errors import AlreadyDecided, NotWaiting, PendingStoreError, PendingStoreUnavailable, ResumeError
from traced_tools.flow.flow import acall
from traced_tools.loop.state import RunState
from traced_tools.stores.statement import Statement
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ExecuteTools

HOUR = timedelta(hours=1)
SECRETS = f'{{"to":"{MARKER}"}}'


def ids(calls: list[WaitingApproval]) -> list[str]:
    return [each.call_id for each in calls]


# The inbox.


def test_a_call_that_waits_is_listed_with_its_run(store: PendingStore) -> None:
    state = kept(store, paused("a", principal="ana", reason="large"))
    began = datetime.fromtimestamp(NOW, UTC)
    wanted = WaitingApproval(
        call_id="a",
        run_id="run-1",
        state_id=state.id,
        agent="desk",
        conversation_id="c-1",
        principal="ana",
        tool="pay",
        arguments=ARGUMENTS,
        rule="large",
        reason="large",
        intent="large",
        requested_at=began,
        expires_at=None,
        is_last=True,
    )
    assert store.pending() == [wanted] == [store.find("a")]
    assert wanted.args == {"amount": 5}


def test_calls_are_listed_oldest_first_and_can_be_selected(store: PendingStore) -> None:
    kept(store, paused("new", run_id="r2", agent="desk", principal="ana", requested_at=NOW + 60))
    kept(store, paused("old", "next", run_id="r1", agent="shop", principal="bob"))
    assert ids(store.pending()) == ["old", "next", "new"]
    assert ids(store.pending(limit=2)) == ["old", "next"]
    assert ids(store.pending(agent="desk")) == ids(store.pending(principal="ana")) == ["new"]
    assert ids(store.pending(agent="desk", principal="bob")) == []
    with pytest.raises(ValueError, match="limit must be at least 1"):
        store.pending(limit=0)


def test_a_decided_call_leaves_the_inbox_and_the_last_one_makes_its_run_ready(store: PendingStore) -> None:
    state = kept(store, paused("a", "b"))
    assert [each.is_last for each in store.pending()] == [False, False]
    store.decide("a", Approve(by="ana"))
    [left] = store.pending()
    assert (left.call_id, left.is_last, store.ready()) == ("b", True, [])
    store.decide("b", Reject("no", by="bob"))
    assert (store.pending(), store.ready()) == ([], [state.to_text(None)])
    assert store.ready(agent="desk") == store.ready()
    assert store.ready(agent="shop") == []


def test_the_state_of_a_run_is_found_by_the_id_of_the_run_and_of_the_state(store: PendingStore) -> None:
    state = kept(store, paused("a"))
    assert store.state("run-1") == store.state(state.id) == state.to_text(None)
    assert RunState.from_text(store.state("run-1")) == state
    claimed(store, state)
    for each in ("run-1", state.id, "invented"):
        with pytest.raises(NotWaiting, match=f"no run with the id '{each}' waits"):
            store.state(each)


# Decisions.


def test_a_claim_returns_decisions_as_they_were_made(store: PendingStore) -> None:
    edited = Approve(by="ana", arguments={"amount": 7, "to": [{"é": None}]}, code="ticket")
    decisions: dict[str, Any] = {"a": edited, "b": Approve(), "c": Reject(MARKER, by="bob", code="fraud")}
    state = kept(store, paused("a", "b", "c", "d"))
    for call_id, decision in decisions.items():
        store.decide(call_id, decision)
    assert claimed(store, state) == decisions


def test_edited_arguments_are_stored_as_canonical_json(url: str) -> None:
    with PendingStore(url) as store:
        kept(store, paused("a"))
        store.decide("a", Approve(arguments={"b": 1.0, "a": {"d": "é", "c": ()}}))
    [(decision,)] = execute(url, "SELECT decision FROM pending_calls")
    assert decision == '{"arguments":{"a":{"c":[],"d":"é"},"b":1},"code":null,"decision":"approve"}'


def test_a_call_is_decided_once(store: PendingStore) -> None:
    state = kept(store, paused("a"))
    store.decide("a", Reject("no"))
    for decide in (
        lambda: store.decide("a", Approve()),
        lambda: store.decide("a", Reject("no")),
    ):
        with pytest.raises(AlreadyDecided, match="the call 'a' was decided before") as caught:
            decide()
        assert caught.value.call_id == "a"
    assert claimed(store, state) == {"a": Reject("no")}


def test_a_decided_call_is_found_with_its_decision_until_its_run_resumes(
    store: PendingStore, clock: Callable[[float], None]
) -> None:
    state = kept(store, paused("a", "b"))
    assert store.find("a").decision is None
    clock(90)
    store.decide("a", Approve(by="ana"))
    decision = store.find("a").decision
    assert decision == Approve(by="ana")
    assert decision is not None
    assert decision.decided_at == NOW + 90
    claimed(store, state)
    with pytest.raises(NotWaiting):
        store.find("a")


def test_a_withdrawn_run_leaves_the_inbox_and_never_resumes(store: PendingStore) -> None:
    state = kept(store, paused("a"))
    assert not store.is_withdrawn("run-1")
    assert (store.withdraw("run-1"), store.withdraw("run-1"), store.withdraw("invented")) == (True, False, False)
    assert (store.is_withdrawn("run-1"), store.is_withdrawn("invented")) == (True, False)
    assert (store.pending(), store.ready()) == ([], [])
    for refused in (lambda: store.decide("a", Approve()), lambda: store.state("run-1")):
        with pytest.raises(NotWaiting):
            refused()
    with pytest.raises(ResumeError, match="the run was withdrawn"):
        claimed(store, state)
    assert store.delete_spent() == 1


def test_a_run_that_has_resumed_cannot_be_withdrawn(store: PendingStore) -> None:
    state = kept(store, paused("a"))
    claimed(store, state)
    assert not store.withdraw("run-1")
    assert not store.is_withdrawn("run-1")
    with pytest.raises(ResumeError, match="spent"):
        claimed(store, state)


def test_a_store_of_the_first_version_is_migrated(url: str) -> None:
    with PendingStore(url) as store:
        state = kept(store, paused("a"))
    execute(url, "ALTER TABLE pending_runs DROP COLUMN withdrawn_at")
    execute(url, "ALTER TABLE pending_calls DROP COLUMN input")
    for column in ("refused_at", "refusal"):
        execute(url, f"ALTER TABLE pending_runs DROP COLUMN {column}")
    execute(url, "DROP TABLE pending_deleted")
    execute(url, "ALTER TABLE pending_calls DROP COLUMN path")
    execute(url, "UPDATE pending_schema SET version = 1")
    with PendingStore(url) as store:
        assert ids(store.pending()) == ["a"]
        assert store.withdraw("run-1")
        with pytest.raises(ResumeError, match="withdrawn"):
            claimed(store, state)
        assert store.delete_spent() == 1


@pytest.mark.parametrize("version", [6, 7])
def test_a_store_without_priorities_is_migrated(url: str, version: int) -> None:
    with PendingStore(url) as store:
        assert store.interrupted() == []  # which creates the tables
    change = "ALTER TABLE durable_runs DROP COLUMN priority" if version == 7 else "DROP TABLE durable_runs"
    execute(url, change)
    execute(url, f"UPDATE pending_schema SET version = {version}")
    with PendingStore(url) as store:
        client = ChatClient(ScriptedChatModel(["done"]), name="desk", pending_store=store)
        client.submit("Go.", key="k", priority=3)
        assert [(run.key, run.priority) for run in store.due_runs.due()] == [("k", 3)]


def test_an_unknown_call_or_that_of_a_resumed_run_cannot_be_decided(store: PendingStore) -> None:
    claimed(store, kept(store, paused("a")))
    for call_id, run_id in (("a", None), ("a", "run-1"), ("invented", None)):
        with pytest.raises(NotWaiting, match=f"no call with the id '{call_id}' waits"):
            store.decide(call_id, Approve(), run_id=run_id)


def test_calls_of_several_runs_with_one_id_are_distinguished_by_their_run(store: PendingStore) -> None:
    one, other = (kept(store, paused("a", run_id=each)) for each in ("r1", "r2"))
    for request in (lambda: store.decide("a", Approve()), lambda: store.find("a")):
        with pytest.raises(PendingStoreError, match="2 runs that wait have a call with the id 'a': pass"):
            request()
    store.decide("a", Reject("no"), run_id="r2")
    assert store.find("a", run_id="r1").run_id == "r1"
    assert (claimed(store, one), claimed(store, other)) == ({}, {"a": Reject("no")})


def test_a_decision_that_cannot_be_recorded_is_refused_and_changes_nothing(store: PendingStore) -> None:
    state = kept(store, paused("a"))
    strange: Any = "yes"
    cases = {
        "a wider scope": (Approve(scope="tool"), ValueError, "an approval of more than the call needs an Approval"),
        "no decision": (strange, TypeError, "decision must be an Approve, a Reject or a Provide, not str"),
    }

    def is_refused(case: tuple[Any, type[Exception], str]) -> None:
        decision, kind, text = case
        for request in (lambda: store.decide("a", decision), lambda: claimed(store, state, {"a": decision})):
            with pytest.raises(kind, match=text) as caught:
                request()
            assert MARKER not in str(caught.value) + repr(caught.value.__context__)

    check_each(cases, is_refused)
    assert ids(store.pending()) == ["a"]


def test_a_wider_scope_is_refused_with_the_words_of_the_loop(store: PendingStore) -> None:
    kept(store, paused("a"))
    texts = set()
    run = (
        ChatClient(ScriptedChatModel([ToolCall("add", {"a": 1, "b": 1}, id="a"), "done"]), tools=[add])
        .prompt("?")
        .start()
    )
    while step := run.next():
        for decide in (step.decide, store.decide) if isinstance(step, ExecuteTools) else ():
            with pytest.raises(ValueError, match="scope='call'") as caught:
                decide("a", Approve(scope="run"))
            texts.add(str(caught.value))
        run.perform(step)
    assert len(texts) == 1


# Claims.


def test_a_pause_and_a_claim_execute_few_statements_in_a_transaction_each(
    store: PendingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(store, paused("first", run_id="run-0"))  # creates the tables
    executed: list[object] = []
    commits: list[object] = []
    execute = Statement._execute
    monkeypatch.setattr(Statement, "_execute", lambda self, *rest: executed.append(self) or execute(self, *rest))
    event.listen(store._database.engine, "before_cursor_execute", lambda *rest: executed.append(rest[2]))
    event.listen(store._database.engine, "commit", commits.append)
    state = kept(store, paused("a"))
    assert (executed, len(commits)) == ([queries.KEPT_OR_DELETED, queries.KEEP_RUN, queries.KEEP_CALL], 1)
    executed.clear()
    claimed(store, state, {"a": Approve(by="ana")})
    assert (executed, len(commits)) == ([queries.SPEND, queries.CALLS_OF_STATE, queries.DECIDE_OPEN], 2)


def test_a_state_is_claimed_once(store: PendingStore) -> None:
    state = kept(store, paused("a"))
    assert claimed(store, state, {"a": Approve(by="ana")}) == {"a": Approve(by="ana")}
    with pytest.raises(ResumeError, match="the state is spent"):
        claimed(store, state)


def test_the_decisions_of_a_claim_are_recorded(url: str) -> None:
    with PendingStore(url) as store:
        claimed(store, kept(store, paused("a", "b")), {"a": Reject("no", by="ana")})
    rows = execute(url, "SELECT call_id, decided_by, decision_reason FROM pending_calls ORDER BY call_id")
    assert rows == [("a", "ana", "no"), ("b", None, None)]


def test_given_and_stored_decisions_are_merged_and_the_stored_one_stays(store: PendingStore, url: str) -> None:
    state = kept(store, paused("a", "b", "c"))
    store.decide("a", Approve(by="ana"))
    merged = claimed(store, state, {"a": Approve(by="bob"), "b": Reject("no")})
    assert merged == {"a": Approve(by="ana"), "b": Reject("no")}
    assert execute(url, "SELECT decided_by FROM pending_calls WHERE call_id = 'a'") == [("ana",)]


@pytest.mark.parametrize(
    ("stored", "given"),
    [
        (Reject("no"), Approve()),
        (Approve(), Reject("no")),
        (Approve(), Approve(arguments={"amount": 6})),
        (Approve(arguments={"amount": 7}), Approve(arguments={"amount": 6})),
    ],
    ids=str,
)
def test_a_claim_that_contradicts_a_decision_spends_nothing(store: PendingStore, stored: Any, given: Any) -> None:
    state = kept(store, paused("a", "b"))
    store.decide("a", stored)
    with pytest.raises(ResumeError, match="the call 'a' was decided otherwise before"):
        claimed(store, state, {"b": Approve(), "a": given})
    assert ids(store.pending()) == ["b"]
    assert claimed(store, state) == {"a": stored}


def test_a_claim_that_the_store_cannot_vouch_for_spends_nothing(store: PendingStore) -> None:
    state = kept(store, paused("a"))
    cases: dict[str, tuple[RunState, dict[str, Approve | Reject], str]] = {
        "an unknown state": (paused("a"), {}, "the store does not know the state"),
        "other arguments": (paused("a", arguments="{}").replace(id=state.id), {}, "has other calls than the store"),
        "other calls": (paused("a", "b").replace(id=state.id), {}, "has other calls than the store"),
        "a decision about no call": (state, {"z": Approve()}, "no call with the id 'z' waits in this state"),
    }

    def is_refused(case: tuple[RunState, dict[str, Approve | Reject], str]) -> None:
        with pytest.raises(ResumeError, match=case[2]):
            claimed(store, case[0], case[1])

    check_each(cases, is_refused)
    assert store.state("run-1")


def test_a_call_without_a_decision_waits_on_in_the_state_of_the_next_run(store: PendingStore) -> None:
    state = kept(store, paused("a", "b"))
    store.decide("a", Approve())
    assert claimed(store, state) == {"a": Approve()}
    kept(store, paused("b", run_id="run-2"))
    assert [(each.call_id, each.run_id) for each in store.pending()] == [("b", "run-2")]
    store.decide("b", Approve())


# Expiry.


def test_a_call_expires_and_is_denied_when_its_run_resumes(url: str, clock: Callable[[float], None]) -> None:
    with PendingStore(url, expires=HOUR) as store:
        state = kept(store, paused("a", "b", "c"))
        assert store.find("a").expires_at == datetime.fromtimestamp(NOW, UTC) + HOUR
        store.decide("c", Approve())
        clock(3599.9)
        assert (ids(store.pending()), store.ready()) == (["a", "b"], [])
        clock(3600)
        assert [(each.call_id, each.is_last) for each in store.pending()] == [("b", True)]
        for request in (lambda: store.decide("a", Approve()), lambda: store.find("a")):
            with pytest.raises(NotWaiting, match="the call 'a' has expired"):
                request()
        with pytest.raises(ResumeError, match="the call 'a' has expired: resume without a decision about it"):
            claimed(store, state, {"a": Approve()})
        clock(3601)
        assert (store.pending(), len(store.ready())) == ([], 1)
        denied = Denied("nobody decided about it before it expired.", "approval_timeout")
        assert claimed(store, state) == {"a": denied, "b": denied, "c": Approve()}


def test_a_call_that_waits_on_expires_as_if_its_run_had_never_resumed(url: str, clock: Callable[[float], None]) -> None:
    with PendingStore(url, expires=HOUR) as store:
        claimed(store, kept(store, paused("a", "b")), {"a": Approve()})
        clock(1800)
        kept(store, paused("b", run_id="run-2"))
        assert store.find("b").expires_at == datetime.fromtimestamp(NOW, UTC) + HOUR


# Deletion.


def test_spent_states_are_deleted_with_their_calls(url: str, clock: Callable[[float], None]) -> None:
    with PendingStore(url) as store:
        for index, name in enumerate("abc"):
            kept(store, paused(name, run_id=name))
            if name != "c":
                clock(index * 60)
                claimed(store, RunState.from_text(store.state(name)))
        assert store.delete_spent(datetime.fromtimestamp(NOW, UTC)) == 1
        assert store.delete_spent() == 1
        assert store.delete_spent() == 0
        assert ids(store.pending()) == ["c"]
        with pytest.raises(ValueError, match="by must have a time zone"):
            store.delete_spent(datetime(2026, 1, 1))
    assert execute(url, "SELECT call_id FROM pending_calls") == [("c",)]


@pytest.mark.parametrize("how", ["spent", "withdrawn", "forgotten"])
def test_a_state_that_was_deleted_is_not_kept_again(url: str, how: str) -> None:
    with PendingStore(url) as store:
        state = paused("a", principal="ana").replace(is_kept=True)
        kept(store, state)
        if how == "spent":
            claimed(store, state)
        elif how == "withdrawn":
            store.withdraw("run-1")
        assert (store.delete_principal("ana") if how == "forgotten" else store.delete_spent()) == 1
        store.put(state.to_text(None))
        assert (store.ready(), store.pending()) == ([], [])
        with pytest.raises(ResumeError, match="the store does not know the state"):
            claimed(store, state)


def test_a_person_is_forgotten(url: str) -> None:
    with PendingStore(url) as store:
        claimed(store, kept(store, paused("a", principal="ana", arguments=SECRETS)))
        waiting = kept(store, paused("b", principal="ana", arguments=SECRETS))
        kept(store, paused("c", principal="bob", run_id="run-2"))
        assert store.delete_principal("ana") == 2
        assert ids(store.pending()) == ["c"]
        with pytest.raises(ResumeError, match="the store does not know the state"):
            claimed(store, waiting)
    assert MARKER not in str(execute(url, "SELECT state FROM pending_runs"))
    assert execute(url, "SELECT call_id FROM pending_calls") == [("c",)]


# On asyncio.


def test_every_method_has_an_async_twin_that_does_the_same(url: str) -> None:
    async def use(store: PendingStore) -> Any:
        state = paused("a", "b", principal="ana")
        await acall(store.keep(state, state.to_text(None)))
        found = await store.afind("a")
        assert await store.apending() == store.pending()
        await store.adecide("a", Approve(by="ana"), run_id=found.run_id)
        await store.adecide("b", Reject("no"))
        with pytest.raises(AlreadyDecided):
            await store.adecide("a", Approve())
        assert await store.aready() == [await store.astate("run-1")]
        decisions = await acall(store.claim(state, {}))
        assert not (await store.awithdraw("run-1") or await store.ais_withdrawn("run-1"))
        assert (await store.adelete_spent(), await store.adelete_principal("ana")) == (1, 0)
        return decisions

    with PendingStore(url) as store:
        assert asyncio.run(patiently(use(store))) == {"a": Approve(by="ana"), "b": Reject("no")}


# Broken rows, files, URLs and outages.

BROKEN = {
    "arguments of no JSON": "UPDATE pending_calls SET arguments = '{\"mArKeR-7f3a'",
    "arguments of another shape": "UPDATE pending_calls SET arguments = '[1]'",
    "an impossible time": "UPDATE pending_calls SET requested_at = 9000000000000000000",
}
BROKEN_DECISIONS = {
    "no JSON": "UPDATE pending_calls SET decision = '{\"mArKeR-7f3a'",
    "no decision": "UPDATE pending_calls SET decision = NULL",
    "an unknown decision": "UPDATE pending_calls SET decision = replace(decision, 'approve', 'mArKeR-7f3a')",
    "arguments of another shape": "UPDATE pending_calls SET decision = replace(decision, 'null', '[1]')",
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_row_that_cannot_be_read_is_named(store: PendingStore, url: str, broken: str) -> None:
    kept(store, paused("a"))
    execute(url, BROKEN[broken])
    for request in (store.pending, lambda: store.find("a")):
        with pytest.raises(PendingStoreError, match=r"the row of the call 'a' in .* cannot be read, its arg") as caught:
            request()
        assert MARKER not in str(caught.value) + repr(caught.value.__context__)


@pytest.mark.parametrize("broken", BROKEN_DECISIONS)
def test_a_decision_that_cannot_be_read_lets_no_run_resume(store: PendingStore, url: str, broken: str) -> None:
    state = kept(store, paused("a"))
    store.decide("a", Approve())
    execute(url, BROKEN_DECISIONS[broken])
    with pytest.raises(PendingStoreError, match="cannot be read, its decision is none of this version") as caught:
        claimed(store, state)
    assert MARKER not in str(caught.value) + repr(caught.value.__context__)
    assert store.state(state.id)


def test_any_text_that_a_model_or_a_person_writes_is_kept_as_it_is(store: PendingStore) -> None:
    odd = "\0 \\0 \\ud800 \ud800 \\ é 🚀 ' \" % :x"
    state = kept(store, paused(odd, agent=odd, principal=odd, reason=odd))
    [found] = store.pending(agent=odd, principal=odd)
    assert (found.call_id, found.agent, found.principal, found.reason, found.intent) == (odd,) * 5
    for each in (odd, "a\0b", "\ud800"):
        with pytest.raises(NotWaiting):
            store.decide(odd, Approve(), run_id=each)
        with pytest.raises(NotWaiting):
            store.state(each)
    assert len(store.pending(limit=10**30)) == 1
    decision = Reject(odd, by=odd, code=odd)
    store.decide(odd, decision)
    assert claimed(store, state) == {odd: decision}


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_only_its_owner_can_read_a_file_that_the_store_creates(path: Path) -> None:
    with PendingStore(f"sqlite:///{path}") as store:
        assert not store.exists()
        assert not path.exists()
        kept(store, paused("a"))
        assert store.exists()
        for file in path.parent.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name


def test_runs_wait_in_the_store_after_the_process_that_kept_them(url: str) -> None:
    with PendingStore(url) as store:
        state = kept(store, paused("a"))
    with PendingStore(url) as store:
        assert ids(store.pending()) == ["a"]
        assert claimed(store, state) == {}


def test_settings_that_cannot_work_are_refused(path: Path) -> None:
    for url, problem in {
        "sqlite://": "a pending store in SQLite needs a file",
        "mysql://user:a-secret@host/d": "no pending store for mysql",
        "postgresql://a-secret:port@host:b/d": "the URL of the pending store is invalid",
    }.items():
        with pytest.raises(ConfigurationError, match=problem) as caught:
            PendingStore(url)
        assert "a-secret" not in str(caught.value)
    with pytest.raises(ValueError, match="expires must be a positive duration"):
        PendingStore(f"sqlite:///{path}", expires=timedelta())
    never: Any = 60
    with pytest.raises(TypeError, match="expires must be a timedelta or None"):
        PendingStore(f"sqlite:///{path}", expires=never)


def test_a_store_of_another_version_is_refused(url: str) -> None:
    with PendingStore(url) as store:
        kept(store, paused("a"))
    execute(url, "UPDATE pending_schema SET version = 99")
    with PendingStore(url) as store, pytest.raises(PendingStoreError, match="version of the pending store is 99"):
        store.pending()


def test_nothing_shows_arguments_or_reasons(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    url = f"sqlite:///{path}"
    seen: list[object] = []
    with PendingStore(url) as store:
        for name in "abc":
            kept(store, paused(name, run_id=name, arguments=SECRETS, reason=MARKER, principal=MARKER))
        seen += [store, *store.pending()]
        state = RunState.from_text(store.state("a"))
        store.decide("a", Reject(MARKER, by=MARKER))
        store.decide("b", Approve(arguments={"to": MARKER}))
        seen.append(claimed(store, state))
        failing: list[Callable[[], object]] = [
            lambda: store.decide("b", Reject(MARKER, by=MARKER)),
            lambda: store.decide("z", Reject(MARKER, by=MARKER)),
            lambda: claimed(store, state, {"a": Reject(MARKER)}),
            lambda: claimed(store, RunState.from_text(store.state("b")), {"b": Reject(MARKER)}),
        ]
        execute(url, "DROP TABLE pending_calls")
        failing += [lambda: store.decide("c", Reject(MARKER)), lambda: kept(store, paused("d", arguments=SECRETS))]
        for request in failing:
            with pytest.raises(TracedToolsError) as caught:
                request()
            seen += [caught.value, caught.value.__context__, caught.value.__cause__]
    assert isinstance(caught.value, PendingStoreUnavailable)
    assert MARKER not in everything(seen)
    assert MARKER not in caplog.text
