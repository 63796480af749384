"""What durability costs: intents until they are durable, records a second, verifying, listing.

Each round makes a store of its own. *Loops* are runs of a `ChatClient` with an `AuditAdvisor` and a trivial tool, side
by side on one event loop; each waits for its intent before the tool starts. *Records a second* is the trail alone: so
many tasks, each of which waits for one record before it hands over the next. One commit for each record is the same
trail, but that a transaction takes no second record.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, time_ns
from unittest.mock import patch

from tests.audit.made import insert, many
from tests.audit.postgresql import Database, serving
from tests.bench.report import Row, Section
from tests.bench.workload import NO_LIMITS, CountingModel, async_add
from traced_tools import ChatClient
from traced_tools._flow import Step
from traced_tools.advisors.audit import AuditAdvisor
from traced_tools.audit import writer
from traced_tools.audit.reading import AuditReader
from traced_tools.audit.records import Content, Draft, Subject
from traced_tools.audit.trail import AuditTrail
from traced_tools.audit.verifying import verify

CONCURRENT = (1, 16, 256)
MANY = CONCURRENT[-1]
GAIN_TARGET = 20
VERIFY_TARGET = 50_000
LIST_TARGET_MS = 200
KEY = "a key of the benchmark"

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

    def write(self, draft: Draft) -> Step[None]:
        """Have a record written."""
        return Timed(super().write(draft), self.taken)


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
    """Return how many records become durable in a second when so many tasks wait for theirs."""
    with AuditTrail(store, key=KEY, checkpoints=_nowhere, timeout=60) as trail:
        await trail.write(_draft(0)).arun()
        began = perf_counter()

        async def one() -> None:
            for index in range(each):
                await trail.write(_draft(index)).arun()

        await asyncio.gather(*(one() for _ in range(tasks)))
        return tasks * each / (perf_counter() - began)


def _draft(index: int) -> Draft:
    subject = Subject("assistant", "01a2001c-0c93-7687-9182-388161228eca", f"call_{index}", "add", 1, 0)
    fields = {"source": "local", "batch_size": 1, "model": "bench-1", "provider": "bench", "argument_names": ["a", "b"]}
    contents = {"arguments": Content(f'{{"a": {index}, "b": 1}}', may_be_told=True, is_json=True)}
    return Draft("intent", time_ns(), subject, fields, contents)


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
        pairs = []
        for _ in range(rounds):
            grouped = runner.run(records_per_second(new_store(), MANY, 20 if quick else 100))
            with one_commit_each():
                pairs.append((grouped, runner.run(records_per_second(new_store(), MANY, 4 if quick else 10))))
    grouped, single = (statistics.median(each) for each in zip(*pairs, strict=True))
    rows.append(Row(f"group commit, {MANY} loops", grouped, "records/s", digits=0))
    rows.append(Row(f"one commit for each record, {MANY} loops", single, "records/s", digits=0))
    gain = statistics.median(group / one for group, one in pairs)
    rows.append(Row("group commit / one commit for each record", gain, "x", at_least=GAIN_TARGET))
    return Section(f"the audit trail in {name}, median of {rounds}", rows)


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
        "a tool": {"tool": some.tool},
        "a tool that never was": {"tool": "nothing"},
        "an agent": {"agent": some.agent},
        "denied": {"decision": "denied"},
        "denied, of a tool": {"decision": "denied", "tool": some.tool},
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
        reader.calls(**chosen)  # type: ignore[arg-type]  # the table of filters has all kinds
        taken.append((perf_counter() - began) * 1000)
    return statistics.median(taken)


def audit_sections(quick: bool) -> list[Section]:
    """Measure the audit trail in SQLite, in PostgreSQL where there is one, and how fast it is read."""
    with tempfile.TemporaryDirectory(prefix="bench-audit-", dir=".") as folder:
        names = (str(Path(folder) / f"{index}.db") for index in range(1_000))
        made = [store_section("SQLite", lambda: next(names), quick), *_on_postgresql(quick)]
        return [*made, reading_section(Path(folder), 100_000 if quick else 1_000_000)]


def _on_postgresql(quick: bool) -> Iterator[Section]:
    with serving() as server:
        databases = (Database(server, f"bench_{index}").url() for index in range(1_000))
        yield store_section("PostgreSQL", lambda: next(databases), quick)
