"""Wherever a life of a run ends, the next one goes on there: with the results, the limits and the conversation."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from zlib import crc32

import pytest

from tests.audit.draft_trails import KeptTrail, auditing
from tests.durable.scenarios import (
    LOG_WRITES,
    MEMORIES,
    SCENARIOS,
    UNKNOWN,
    Parts,
    Process,
    Scenario,
    decide_all,
    memory_of,
    results_in,
    written_by,
)
from tests.memory.conversations import assert_well_formed, shown
from tests.sweeps import sweep
from traced_tools import ChatClient, Message, ToolMessage
from traced_tools.approvals import PendingStore
from traced_tools.audit.records import Draft
from traced_tools.durable.records import Answered, CallBegan, CallEnded, Record, read_records
from traced_tools.durable_run import DurableRun
from traced_tools.errors import PendingStoreUnavailable
from traced_tools.memory import InMemoryChatMemoryRepository
from traced_tools.models import ChatRequest
from traced_tools.testing import ScriptedChatModel

MOST_DRIVES = 12
STRIDE = 6
"""Each case has every sixth step of its run; the cases of one scenario have different ones, and together all."""


class Died(BaseException):
    """The process of a run ends."""


class CutProcess(Process):
    """A life in this process.

    Args:
        ledger: what has happened in all lives.
        last: the number of the step at which it ends.
        how: `killed` if nothing happens after that step; `interrupted` if the code that handles an interrupt goes on;
            `failing` if the store of the log fails then.
    """

    def __init__(self, ledger: list[str], last: int = 0, how: str = "killed") -> None:
        super().__init__(last)
        self.is_dead = self.has_ended = False
        self._ledger, self._how = ledger, how

    def note(self, event: str) -> None:
        self._ledger.append(event)

    def step(self, name: str) -> None:
        if self.is_dead:
            raise Died
        if self._how != "failing" or name.split()[-1] in LOG_WRITES:
            super().step(name)

    def end(self) -> NoReturn:
        self.has_ended = True
        self.is_dead = self._how == "killed"
        raise PendingStoreUnavailable("down") if self._how == "failing" else Died


class Trail(KeptTrail):
    """A trail that keeps nothing more when the process has ended."""

    process: CutProcess

    def submit(self, draft: Draft) -> None:
        if not self.process.is_dead:
            super().submit(draft)


@dataclass
class Outcome:
    """What is known of a run that has ended.

    Attributes:
        ending: its status, content and stop reason.
        ledger: what has happened.
        requests: what models were sent in each life.
        later: what the model of a later run in the conversation is sent.
        records: the log.
        drafts: the records of the audit trail.
        deaths: how many lives were cut.
    """

    ending: str
    ledger: list[str]
    requests: list[list[ChatRequest]]
    later: Sequence[Message]
    records: list[Record]
    drafts: list[Draft]
    deaths: int

    def last_sent(self) -> Sequence[Message]:
        """Return what the model was sent last."""
        return [request for life in self.requests for request in life][-1].messages

    def starts(self) -> set[str]:
        """Return the ids of the calls whose tools have begun and may not run again."""
        return {item.call_id for item in self.records if isinstance(item, CallBegan) and not item.repeatable}


class World:
    """A store, and runs whose lives end at some steps."""

    def __init__(self, store: PendingStore) -> None:
        self.store = store
        self._runs = 0

    def outcome(self, scenario: Scenario, memory: str, mode: str, *cuts: int, how: str = "killed") -> Outcome:
        """Drive a run to its end through lives that end at some steps; return what is known of it."""
        self._runs += 1
        key, ledger, trail = f"run {self._runs}", list[str](), Trail()
        repository, requests = InMemoryChatMemoryRepository(), list[list[ChatRequest]]()
        conversation, deaths, ending = None if memory == "none" else "c", 0, ""
        next_cuts = [*cuts]
        for _ in range(MOST_DRIVES):
            process = trail.process = CutProcess(ledger, next_cuts[0] if next_cuts else 0, how)
            own_memory = memory_of(written_by(process, repository, "commit"), memory)
            parts = Parts(process, self._store_of(process), [auditing(trail), *own_memory])
            client = scenario.client(parts)
            try:
                client.submit("Go.", key=key, conversation_id=conversation)
                run = drive(mode, client, key, scenario)
                ending = "" if run.status == "waiting" else f"{run.status} {run.content} {run.stop_reason}"
            except Died:
                pass
            except Exception as error:
                ending = "" if process.has_ended else f"raised {type(error).__name__}"
            if next_cuts:  # a life that has paused leaves its cut to the next one
                deaths += process.has_ended
                next_cuts = next_cuts[1:] if process.has_ended else [next_cuts[0] - process.steps, *next_cuts[1:]]
            requests.append([*parts.models[-1].requests])
            answers = sum(isinstance(record, Answered) for record in self.records(key))
            ledger.append(f"recorded {answers}")
            if ending:
                break
            decide_all(self.store, scenario)
        later = self._later(memory_of(repository, memory)) if conversation else ()
        return Outcome(ending, ledger, requests, later, self.records(key), trail.drafts, deaths)

    def _store_of(self, process: Process) -> PendingStore:
        store: Any = copy(self.store)
        store.run_logs = written_by(process, self.store.run_logs, *LOG_WRITES)
        return store  # type: ignore[no-any-return]

    def records(self, key: str) -> list[Record]:
        loaded = self.store.run_logs.load(key)
        return [] if loaded is None else read_records(loaded.records, key, ())

    def _later(self, advisors: list[Any]) -> Sequence[Message]:
        model = ScriptedChatModel(["later"])
        ChatClient(model, name="desk", advisors=advisors).prompt("And now?", conversation_id="c").call()
        return model.requests[0].messages


def drive(mode: str, client: ChatClient, key: str, scenario: Scenario) -> DurableRun[Any]:
    if mode == "drive":
        return client.drive(key, **scenario.settings)
    return asyncio.run(client.adrive(key, **scenario.settings))


def check(outcome: Outcome, uncut: Outcome, scenario: Scenario) -> None:
    """Check that a run whose lives were cut ends as one that was not, apart from outcomes that nobody knows."""
    check_nothing_is_done_twice(outcome, scenario)
    for request in (request for life in outcome.requests for request in life):
        assert_well_formed(request.messages)
    if outcome.later:
        assert_well_formed(outcome.later)
    pairs = [(outcome.last_sent(), uncut.last_sent()), (outcome.later, uncut.later)]
    unknown = {call_id for messages, _ in pairs for call_id, text in results_in(messages).items() if UNKNOWN in text}
    assert unknown <= outcome.starts(), "an outcome is unknown, and its tool has not begun"
    if not (unknown and scenario.ends_anyhow):
        assert outcome.ending == uncut.ending
        for messages, expected in pairs:
            assert without_results(messages, unknown) == without_results(expected, unknown)


def check_nothing_is_done_twice(outcome: Outcome, scenario: Scenario) -> None:
    began = Counter(line.removeprefix("began ") for line in outcome.ledger if line.startswith("began "))
    assert {call for call, times in began.items() if times > 1} <= scenario.repeatable, "a call begins twice"
    ends = Counter(record.result.call_id for record in outcome.records if isinstance(record, CallEnded))
    assert set(ends.values()) <= {1}, "a call ends twice"
    outcomes = Counter(
        (item.subject.call_id, item.fields["outcome"])
        for item in outcome.drafts
        if item.kind == "outcome" and item.subject is not None and item.subject.agent == "desk"
    )
    twice = {call_id for (call_id, _), times in outcomes.items() if times > 1}
    assert twice <= scenario.repeatable | scenario.rounds, "an outcome is on record twice"
    recorded = 0
    for line in outcome.ledger:
        if line.startswith("recorded "):
            recorded = int(line.removeprefix("recorded "))
        if line.startswith("asked desk "):
            assert int(line.split()[2]) >= recorded, "a recorded answer is asked for again"


def without_results(messages: Sequence[Message], call_ids: set[str]) -> list[str]:
    """Return messages as short texts, without the results of some calls."""
    return shown(
        [
            message.replace(results=[part for part in message.results if part.call_id not in call_ids])
            if isinstance(message, ToolMessage)
            else message
            for message in messages
        ]
    )


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    def sync_nothing(connection: Any, _: object) -> None:
        connection.execute("PRAGMA synchronous=OFF")

    monkeypatch.setattr("traced_tools.stores.engine.sync_sqlite", sync_nothing)
    with PendingStore(tmp_path / "runs.db") as store:
        yield World(store)


@sweep(
    strength=1,
    name=SCENARIOS,
    memory=MEMORIES,
    mode=["drive", "adrive"],
    how=["killed", "interrupted", "failing"],
)
def test_a_run_that_is_cut_at_a_step_ends_as_one_that_is_not(
    world: World, name: str, memory: str, mode: str, how: str
) -> None:
    scenario, problems = SCENARIOS[name], []
    uncut = world.outcome(scenario, memory, mode)
    first = crc32(f"{memory}{mode}{how}".encode()) % STRIDE + 1
    for step in range(first, 500, STRIDE):
        outcome = world.outcome(scenario, memory, mode, step, how=how)
        if not outcome.deaths:
            break
        try:
            check(outcome, uncut, scenario)
        except AssertionError as error:
            places = [line for line in outcome.ledger if line.startswith("died")]
            problems.append(f"step {step}, {places}: {str(error)[:600]}")
    assert not problems, "\n".join(problems)
