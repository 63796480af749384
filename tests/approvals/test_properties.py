"""Whatever is done in whatever order, each call has at most one decision, and each state at most one claim."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.approvals.made import claimed, kept, paused
from traced_tools import Approve, Reject
from traced_tools.approvals import PendingStore
from traced_tools.core.approval import Denied
from traced_tools.errors import AlreadyDecided, NotWaiting, ResumeError
from traced_tools.loop.state import RunState

LIFE = 10
"""Seconds until a call expires. The calls of a run begin to wait a second after each other."""
CALLS = ("a", "b", "c")
DECISIONS = (Approve(by="ana"), Approve(by="bob"), Approve(arguments={"amount": 1}), Reject("no"))
CALL, DECISION, RUN = st.sampled_from(CALLS), st.sampled_from(DECISIONS), st.sampled_from(("r1", "r2"))
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("decide"), RUN, CALL, DECISION),
        st.tuples(st.just("claim"), RUN, st.dictionaries(CALL, DECISION, max_size=2)),
        st.tuples(st.just("pass"), st.integers(1, 6)),
    ),
    max_size=25,
)


class Model:
    """The runs as dictionaries: the decision about each call, and the runs that were claimed."""

    def __init__(self) -> None:
        self.passed = 0
        self.decided: dict[tuple[str, str], Any] = {}
        self.claimed: set[str] = set()

    def has_expired(self, call_id: str) -> bool:
        return CALLS.index(call_id) + LIFE <= self.passed

    def open_calls(self, run_id: str) -> list[str]:
        if run_id in self.claimed:
            return []
        return [each for each in CALLS if (run_id, each) not in self.decided and not self.has_expired(each)]

    def refuses(self, run_id: str, given: dict[str, Any]) -> bool:
        return run_id in self.claimed or any(
            self.has_expired(call_id) if known is None else verdict(known) != verdict(decision)
            for call_id, decision in given.items()
            for known in [self.decided.get((run_id, call_id))]
        )


def verdict(decision: Approve | Reject) -> object:
    return (type(decision), decision.arguments if isinstance(decision, Approve) else None)


def play(store: PendingStore, model: Model, states: dict[str, RunState], operation: Any) -> None:
    action, run_id, *rest = operation
    if action == "decide":
        call_id, decision = rest
        if call_id in model.open_calls(run_id):
            store.decide(call_id, decision, run_id=run_id)
            model.decided[run_id, call_id] = decision
            return
        is_decided = run_id not in model.claimed and (run_id, call_id) in model.decided
        with pytest.raises(AlreadyDecided if is_decided else NotWaiting):
            store.decide(call_id, decision, run_id=run_id)
        return
    (given_decisions,) = rest
    if model.refuses(run_id, given_decisions):
        with pytest.raises(ResumeError):
            claimed(store, states[run_id], given_decisions)
        return
    for call_id, decision in given_decisions.items():
        model.decided.setdefault((run_id, call_id), decision)
    found = claimed(store, states[run_id], given_decisions)
    model.claimed.add(run_id)
    denied = {each for each, decision in found.items() if isinstance(decision, Denied)}
    assert denied == {each for each in CALLS if (run_id, each) not in model.decided and model.has_expired(each)}
    assert {(run_id, each): found[each] for each in found.keys() - denied} == {
        key: decision for key, decision in model.decided.items() if key[0] == run_id
    }


@contextmanager
def opened() -> Iterator[PendingStore]:
    with TemporaryDirectory() as folder:
        with PendingStore(f"sqlite:///{Path(folder)}/pending.db", expires=timedelta(seconds=LIFE)) as store:
            yield store


@given(OPERATIONS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_call_is_decided_once_and_each_state_claimed_once(
    clock: Callable[[float], None], operations: list[Any]
) -> None:
    clock(0)
    model = Model()
    with opened() as store:
        states = {each: kept(store, paused(*CALLS, run_id=each)) for each in ("r1", "r2")}
        for operation in operations:
            if operation[0] == "pass":
                model.passed += operation[1]
                clock(model.passed)
            else:
                play(store, model, states, operation)
            waiting = {(each.run_id, each.call_id): each.is_last for each in store.pending()}
            open_calls = {each: model.open_calls(each) for each in states}
            assert waiting == {(run, call): len(calls) == 1 for run, calls in open_calls.items() for call in calls}
            ready = [RunState.from_text(each).run_ids[-1] for each in store.ready()]
            assert sorted(ready) == [each for each in states if each not in model.claimed and not open_calls[each]]
