"""What the memory of a conversation costs: what it adds to a turn or to a pass of the loop, and reading a log.

A *turn* is a run of a client with a memory whose window has 20 messages: it reads the last 21 messages, appends the
question, calls a model that answers at once, and appends the answer. What memory adds is the difference to the same run
without it. The floor does the same statements with `sqlite3`: the same tables, rows and transactions, but nothing makes
messages of the rows.

A *pass* is a model call with one tool call, and the tool. A memory inside the loop appends twice in each. What it adds
is the difference between the slopes with it and without it. A repository that has not read a log before reads all of
it; one that has reads what is new.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from statistics import median

import pytest

from tests.audit.postgresql import serving
from tests.bench.report import Row, Section
from tests.bench.timing import Case, Series, sample
from tests.bench.workload import NO_LIMITS, CountingModel, add, repeated
from tests.memory.conftest import new_database
from traced_tools import Advisor, AssistantMessage, ChatClient, MemoryAdvisor, UserMessage
from traced_tools.memory import (
    ChatMemoryRepository,
    InMemoryChatMemoryRepository,
    MessageEntry,
    MessageWindowChatMemory,
    SqlChatMemoryRepository,
)
from traced_tools.models import ChatModel, ChatRequest, ChatResponse

SIZES = (100, 10_000)
NUMBER = 1
TURN_TARGET_US = 1000
LENGTHS = (10, 50, 150)
PASS_TARGET = 1.3
WHOLE_TARGET_US = 60_000
AGAIN_TARGET_US = 5_000
TEXT = "What is the weather in Lisbon today, and what will it be tomorrow? " * 3
COLUMNS = "position, id, turn, branch, kind, body"

FIND = "SELECT * FROM chat_memory_conversations WHERE id = ?"
READ = f"""
    SELECT {COLUMNS} FROM chat_memory_entries WHERE conversation_key = ? AND branch = '' AND kind = 'message'
    AND position > 0 AND position <= ? ORDER BY position DESC LIMIT 21
"""
UPDATE = """
    UPDATE chat_memory_conversations SET version = version + 1, last_turn = ?, attributes = ?, updated_at = ?,
    expires_at = ? WHERE key = ? AND version = ?
"""
ADD = f"INSERT INTO chat_memory_entries (conversation_key, {COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"


def conversations_section(quick: bool) -> Section:
    """Measure the memory of conversations in SQLite, and in PostgreSQL where there is one."""
    rounds = 50 if quick else 500
    with tempfile.TemporaryDirectory(prefix="bench-memory-", dir=".") as folder:
        rows = [*_turn_rows("SQLite", f"sqlite:///{folder}/turns.db", rounds, TURN_TARGET_US)]
        rows += [_floor_row(Path(folder), rounds), *_read_rows("SQLite", f"sqlite:///{folder}/reads.db", rounds)]
        rows += [*_whole_rows(f"sqlite:///{folder}/whole.db", rounds // 10), *_pass_rows(rounds // 10)]
    try:
        with serving() as server:
            rows += _turn_rows("PostgreSQL", new_database(server), rounds)
            rows += _read_rows("PostgreSQL", new_database(server), rounds)
        title = "memory of conversations"
    except pytest.skip.Exception as why:
        title = f"memory of conversations; PostgreSQL: not measured, {why}"
    return Section(title, rows)


def _turn_rows(store: str, url: str, rounds: int, at_most: float | None = None) -> Iterator[Row]:
    with _holding(url, {str(size): size for size in SIZES}) as repository:
        cases = {size: Case(repeated(_turn(repository, str(size)), NUMBER), NUMBER) for size in (0, *SIZES)}
        taken = sample(cases, rounds, lambda: None)
    without = taken.pop(0)
    for size, series in taken.items():
        added = [median(getattr(series, each)) - median(getattr(without, each)) for each in ("cpu", "wall")]
        label = f"memory: adds to a turn of {size:,} messages ({store})"
        yield Row(label, added[0], "us", added[1], series.fastest - without.fastest, at_most)


def _turn(repository: ChatMemoryRepository, name: str) -> Callable[[], object]:
    """Return a turn of the conversation `name`; of a run without memory, if there is no such conversation."""
    advisors = [] if name == "0" else [MemoryAdvisor(MessageWindowChatMemory(repository, max_messages=20))]
    client = ChatClient(Answering(), advisors=advisors)
    return lambda: client.prompt(TEXT, conversation_id=name).call()


class Answering(ChatModel):
    """A model that answers at once, and keeps nothing of what it is sent."""

    provider = "scripted"
    model = "answering"

    def call(self, request: ChatRequest) -> ChatResponse:
        """Return the answer."""
        return ChatResponse(AssistantMessage(TEXT), finish_reason="stop")


def _floor_row(folder: Path, rounds: int) -> Row:
    with _holding(f"sqlite:///{folder}/floor.db", {"plain": SIZES[0]}):
        with closing(sqlite3.connect(folder / "floor.db")) as plain:
            plain.execute("PRAGMA synchronous=NORMAL")
            label = "memory: the statements of a turn (sqlite3)"
            taken = sample({label: Case(repeated(_plain_turn(plain), NUMBER), NUMBER)}, rounds, lambda: None)
    return _row(label, taken[label])


def _plain_turn(connection: sqlite3.Connection) -> Callable[[], None]:
    numbers = count()

    def turn() -> None:
        key, _, version, turn, _, attributes, _, updated_at, expires_at = connection.execute(
            FIND, ("plain",)
        ).fetchone()
        *_, body = connection.execute(READ, (key, version)).fetchall()[0]
        for each in (version, version + 1):
            with connection:
                connection.execute(UPDATE, (turn, attributes, updated_at, expires_at, key, each))
                connection.execute(ADD, (key, each + 1, f"plain-{next(numbers)}", turn, "", "message", body))

    return turn


def _read_rows(store: str, url: str, rounds: int) -> Iterator[Row]:
    cases = {}
    with _holding(url, {str(size): size for size in SIZES}) as repository:
        for size in SIZES:
            label = f"memory: read 20 of {size:,} messages ({store})"
            cases[label] = Case(repeated(_reading(repository, str(size)), NUMBER), NUMBER)
        for label, series in sample(cases, rounds, lambda: None).items():
            yield _row(label, series)


def _whole_rows(url: str, rounds: int) -> Iterator[Row]:
    """Yield the costs of a whole conversation: in a repository that has not read it, and in one that has."""

    def read_first() -> None:
        with SqlChatMemoryRepository(url) as repository:
            repository.read("long")

    with _holding(url, {"long": SIZES[-1]}) as known:
        cases = {"first": Case(read_first), "again": Case(repeated(lambda: known.read("long"), NUMBER), NUMBER)}
        taken = sample(cases, rounds, lambda: None)
    label = f"memory: read all of {SIZES[-1]:,} messages (SQLite)"
    yield _row(label, taken["first"], WHOLE_TARGET_US)
    yield _row(f"{label}, again", taken["again"], AGAIN_TARGET_US)


def _pass_rows(rounds: int) -> Iterator[Row]:
    """Yield how much longer a pass takes with a memory inside the loop, in a short turn and in a long one."""
    memory = MessageWindowChatMemory(InMemoryChatMemoryRepository())
    numbers = count()

    def run(client: ChatClient) -> None:
        client.prompt("What is 41 + 1?", conversation_id=f"pass-{next(numbers)}").call()

    cases = {}
    inside: list[Advisor] = [MemoryAdvisor(memory, order=400)]
    for name, advisors in (("without", []), ("with", inside)):
        for length in LENGTHS:
            client = ChatClient(CountingModel(length), tools=[add], limits=NO_LIMITS, advisors=advisors)
            cases[f"{name} {length}"] = Case(partial(run, client))
    series = sample(cases, rounds, lambda: None)
    for shorter, longer in pairwise(LENGTHS):
        slopes = [
            series[f"{name} {longer}"].slope(series[f"{name} {shorter}"], longer - shorter)
            for name in ("with", "without")
        ]
        label = f"memory: a pass with it inside the loop, {shorter} to {longer} passes"
        yield Row(label, slopes[0].ratio(slopes[1]), "of one without", at_most=PASS_TARGET, digits=2)


def _reading(repository: ChatMemoryRepository, name: str) -> Callable[[], object]:
    return lambda: repository.read(name, last=20, kind="message", branches=[""])


@contextmanager
def _holding(url: str, sizes: Mapping[str, int]) -> Iterator[ChatMemoryRepository]:
    """Return a repository with conversations of these sizes."""
    with SqlChatMemoryRepository(url) as repository:
        for name, size in sizes.items():
            entries = [MessageEntry(UserMessage(TEXT), turn=1 + number // 2) for number in range(size)]
            repository.append(name, entries, 0)
        yield repository


def _row(label: str, series: Series, at_most: float | None = None) -> Row:
    return Row(label, median(series.cpu), "us", median(series.wall), series.fastest, at_most)
