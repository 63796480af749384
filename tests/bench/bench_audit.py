"""What durability costs: intents until they are durable, records a second, verifying, listing.

Each round makes a store of its own. *Intent to durable* is measured in runs of a `ChatClient` with an `AuditAdvisor`
and a trivial tool, side by side on one event loop; each waits for its intent before the tool starts, and then for its
turn on the loop. *Records a second* is the trail alone: so many tasks, each of which waits for its intent and then
hands over a decision and an outcome, as the advisor does. *One commit for each record* is the same trail, but that a
transaction takes no second record; *by hand* is what one would write without a trail: a lock, a connection, worker
threads, and a transaction for each record.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, process_time, time_ns
from unittest.mock import patch

import pytest

from tests.audit.made import insert, many
from tests.audit.postgresql import Database, serving
from tests.bench.report import Row, Section
from tests.bench.workload import NO_LIMITS, CountingModel, async_add
from traced_tools import ChatClient
from traced_tools.audit.advisor import AuditAdvisor
from traced_tools.audit.digests import AuditKey
from traced_tools.audit.reading.reader import AuditReader
from traced_tools.audit.records import Content, Draft, Subject
from traced_tools.audit.store import Store
from traced_tools.audit.trail import AuditTrail
from traced_tools.audit.verifying.walk import verify
from traced_tools.audit.writing import writer
from traced_tools.audit.writing.chain import Chain
from traced_tools.audit.writing.record_builder import RecordMaker
from traced_tools.flow.flow import Step

CONCURRENT = (1, 16, 256)
MANY = CONCURRENT[-1]
GAIN_TARGET = 20
VERIFY_TARGET = 50_000
LIST_TARGET_MS = 200
RECORDS_TARGET_US = 250
CALLS_A_ROUND = 50
KEY = "a key of the benchmark"
ONE = "one commit for each record"
BY_HAND = "one commit for each record by hand"

StoreMaker = Callable[[], str]


class Timed(Step[None]):
    """A step that notes how long it took."""

    def __init__(self, step: Step[None], taken: list[float]) -> None:
        self._step = step
        self._taken = taken

    async def arun(self) -> None:
        """Perform the step on asyncio."""
        began = perf_counter()
        await self._step.arun()
        self._taken.append((perf_counter() - began) * 1e6)


class TimedTrail(AuditTrail):
    """A trail that notes how long each intent takes to be durable, in microseconds."""

    taken: list[float]

    def write(self, draft: Draft, timeout: float | None = None) -> Step[None]:
        """Have a record written."""
        return Timed(super().write(draft, timeout), self.taken)


async def latencies(store: str, loops: int, passes: int) -> list[float]:
    """Run so many loops side by side and return the microseconds from each intent to its commit."""
    with TimedTrail(store, key=KEY, checkpoints=_nowhere) as trail:
        trail.taken = []
        client = ChatClient(CountingModel(passes), tools=[async_add], limits=NO_LIMITS, advisors=[AuditAdvisor(trail)])
        spec = client.prompt("What is 41 + 1?")
        await spec.acall()  # opens the store
        trail.taken.clear()
        await asyncio.gather(*(spec.acall() for _ in range(loops)))
        return trail.taken


async def records_per_second(store: str, tasks: int, each: int) -> float:
    """Return how many records become durable in a second when so many tasks record so many calls each."""
    with AuditTrail(store, key=KEY, checkpoints=_nowhere, timeout=60) as trail:
        await trail.write(_drafts(0)[0]).arun()

        async def one() -> None:
            for index in range(each):
                intent, *others = _drafts(index)
                await trail.write(intent).arun()
                for draft in others:
                    trail.submit(draft)

        began = perf_counter()
        await asyncio.gather(*(one() for _ in range(tasks)))
        assert trail.flush(60)
        return tasks * each * 3 / (perf_counter() - began)


async def records_per_second_by_hand(store: str, tasks: int, each: int) -> float:
    """Return the same of tasks that commit each record in a worker thread."""
    writing, chain, lock = Store(store).writing(), Chain(), threading.Lock()
    maker = RecordMaker(AuditKey(KEY.encode()), "digest", None, {})

    def commit(draft: Draft) -> None:
        with lock:
            writing.append([chain.extend(draft.time, maker.fields(draft, draft.time))])

    async def one() -> None:
        for index in range(each):
            for draft in _drafts(index):
                await asyncio.to_thread(commit, draft)

    began = perf_counter()
    await asyncio.gather(*(one() for _ in range(tasks)))
    rate = tasks * each * 3 / (perf_counter() - began)
    writing.close()
    return rate


def _drafts(index: int) -> list[Draft]:
    """Return what is on record of a call."""
    subject = Subject("assistant", "01a2001c-0c93-7687-9182-388161228eca", f"call_{index}", "add", 1, 0)
    fields = {"source": "local", "batch_size": 1, "model": "bench-1", "provider": "bench", "argument_names": ["a", "b"]}
    arguments = Content(f'{{"a": {index}, "b": 1}}', may_be_stored=True, is_json=True)
    ended = {"outcome": "ok", "duration": 0.000213, "attempts": 1}
    return [
        Draft("intent", time_ns(), subject, fields, {"arguments": arguments}),
        Draft("decision", time_ns(), subject, {"decision": "allowed"}),
        Draft("outcome", time_ns(), subject, ended, {"result": Content("42", may_be_stored=True)}),
    ]


def _nowhere(_: object) -> None:
    """Keep no line: what a checkpoint costs beside the chain is not measured."""


@contextmanager
def one_commit_each() -> Iterator[None]:
    """Have transactions of one record."""
    with patch.object(writer, "MOST_AT_ONCE", 1):
        yield


def store_section(name: str, new_store: StoreMaker, quick: bool) -> Section:
    """Return latency and throughput of one kind of store."""
    rows, rounds = [], 1 if quick else 5
    with asyncio.Runner() as runner:
        for loops in CONCURRENT:
            taken = [runner.run(latencies(new_store(), loops, max(11, 501 // loops))) for _ in range(rounds)]
            cuts = [statistics.quantiles(each, n=100) for each in taken]
            for which, place in (("p50", 49), ("p99", 98)):
                value = statistics.median(each[place] for each in cuts)
                rows.append(Row(f"intent to durable, {loops} loops, {which}", value, "us", digits=0))
        rates = [_rates(runner, new_store, 20 if quick else 50) for _ in range(rounds)]
    for label, values in zip(("group commit", ONE, BY_HAND), zip(*rates, strict=True), strict=True):
        rows.append(Row(f"{label}, {MANY} loops", statistics.median(values), "records/s", digits=0))
    gains = [(grouped / one, grouped / by_hand) for grouped, one, by_hand in rates]
    rows.append(Row(f"group commit / {ONE}", statistics.median(each[0] for each in gains), "x", at_least=GAIN_TARGET))
    rows.append(Row(f"group commit / {BY_HAND}", statistics.median(each[1] for each in gains), "x"))
    return Section(f"the audit trail in {name}, median of {rounds}", rows)


def _rates(runner: asyncio.Runner, new_store: StoreMaker, each: int) -> tuple[float, float, float]:
    grouped = runner.run(records_per_second(new_store(), MANY, each))
    with one_commit_each():
        one = runner.run(records_per_second(new_store(), MANY, 4))
    return grouped, one, runner.run(records_per_second_by_hand(new_store(), MANY, 4))


def processor_section(folder: Path, rounds: int) -> Section:
    """Return the processor time of the three records of a call, in all threads, and that of the transaction alone."""
    maker, chain = RecordMaker(AuditKey(KEY.encode()), "digest", None, {}), Chain()
    drafts = [_drafts(index) for index in range(CALLS_A_ROUND)]
    rows = [[chain.extend(draft.time, maker.fields(draft, draft.time)) for draft in call] for call in drafts]
    recorded, appended = [], []
    writing = Store(str(folder / "floor.db")).writing()
    with AuditTrail(str(folder / "processor.db"), key=KEY, checkpoints=_nowhere) as trail:
        for number in range(rounds + 1):
            began = process_time()
            for intent, *others in drafts:
                trail.write(intent).run()
                for draft in others:
                    trail.submit(draft)
            assert trail.flush()
            recorded.append((process_time() - began) / CALLS_A_ROUND * 1e6)
            began = process_time()
            for call in rows:
                writing.append([(f"{number} {row[0]}", *row[1:]) for row in call])
            appended.append((process_time() - began) / CALLS_A_ROUND * 1e6)
    writing.close()
    ratios = [own / floor for own, floor in zip(recorded[1:], appended[1:], strict=True)]
    return Section(
        f"processor time of the three records of a call in SQLite, median of {rounds}",
        [
            Row("the trail", statistics.median(recorded[1:]), "us", best=min(recorded), at_most=RECORDS_TARGET_US),
            Row("a transaction of the same rows", statistics.median(appended[1:]), "us", best=min(appended)),
            Row("the trail / that", statistics.median(ratios), "x", digits=2),
        ],
    )


def reading_section(folder: Path, records: int) -> Section:
    """Return the speed of verifying and of listing a large store."""
    store = folder / "large.db"
    insert(store, many(records))
    size = store.stat().st_size / records
    began = perf_counter()
    verification = verify(str(store))
    rate = verification.records / (perf_counter() - began)
    assert verification.ok, verification
    rows = [
        Row("verify", rate, "records/s", at_least=VERIFY_TARGET, digits=0),
        Row("a record with its share of the indexes", size, "bytes", digits=0),
    ]
    reader = AuditReader(str(store))
    some = reader.calls(limit=1)[0]
    filters: dict[str, dict[str, object]] = {
        "no filter": {},
        "a tool": {"tool": some.shared_field("tool")},
        "a tool that never was": {"tool": "nothing"},
        "an agent": {"agent": some.shared_field("agent")},
        "denied": {"decision": "denied"},
        "denied, of a tool": {"decision": "denied", "tool": some.shared_field("tool")},
        "errors": {"outcome": "error"},
        "unfinished": {"outcome": "unfinished"},
    }
    for label, chosen in filters.items():
        rows.append(Row(f"list: {label}", _milliseconds(reader, chosen), "ms", at_most=LIST_TARGET_MS))
    return Section(f"reading {records:,} records in SQLite", rows)


def _milliseconds(reader: AuditReader, chosen: dict[str, object]) -> float:
    taken = []
    for _ in range(5):
        began = perf_counter()
        reader.calls(limit=100, **chosen)  # type: ignore[arg-type]  # the table of filters has all kinds
        taken.append((perf_counter() - began) * 1000)
    return statistics.median(taken)


def audit_sections(quick: bool) -> list[Section]:
    """Measure the audit trail in SQLite, in PostgreSQL where there is one, and how fast it is read."""
    with tempfile.TemporaryDirectory(prefix="bench-audit-", dir=".") as folder:
        names = (str(Path(folder) / f"{index}.db") for index in range(1_000))
        made = [store_section("SQLite", lambda: next(names), quick), *_on_postgresql(quick)]
        made.append(processor_section(Path(folder), 5 if quick else 30))
        return [*made, reading_section(Path(folder), 100_000 if quick else 1_000_000)]


def _on_postgresql(quick: bool) -> Iterator[Section]:
    try:
        with serving() as server:
            databases = (Database(server, f"bench_{index}").url() for index in range(1_000))
            yield store_section("PostgreSQL", lambda: next(databases), quick)
    except pytest.skip.Exception as why:
        yield Section(f"the audit trail in PostgreSQL: not measured, {why}", [])
