"""What the memory of a conversation costs: reading a part of a log, and a turn.

A *turn* reads the last 21 messages of the main agent, appends the user's message, and appends the answer. The floor
does the same statements with `sqlite3`: the same tables, rows and transactions, but nothing makes messages of the rows.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from statistics import median

import pytest

from tests.audit.postgresql import serving
from tests.bench.report import Row, Section
from tests.bench.timing import Case, Series, sample
from tests.bench.workload import repeated
from tests.memory.conftest import new_database
from traced_tools import MessageEntry, SqlChatMemoryRepository, UserMessage
from traced_tools.flow.flow import call
from traced_tools.memory import ChatMemoryRepository

SIZES = (100, 10_000)
NUMBER = 1
TURN_TARGET_US = 1000
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
        rows = [*_turn_rows(Path(folder), rounds), *_read_rows("SQLite", f"sqlite:///{folder}/reads.db", rounds)]
    try:
        with serving() as server:
            rows += _read_rows("PostgreSQL", new_database(server), rounds)
        title = "memory of conversations"
    except pytest.skip.Exception as why:
        title = f"memory of conversations; PostgreSQL: not measured, {why}"
    return Section(title, rows)


def _turn_rows(folder: Path, rounds: int) -> Iterator[Row]:
    with _holding(f"sqlite:///{folder}/turns.db", {"c": SIZES[0], "plain": SIZES[0]}) as repository:
        with closing(sqlite3.connect(folder / "turns.db")) as plain:
            plain.execute("PRAGMA synchronous=NORMAL")
            cases = {
                "memory: a turn (SQLite)": Case(repeated(lambda: call(_turn(repository)), NUMBER), NUMBER),
                "memory: the statements of a turn (sqlite3)": Case(repeated(_plain_turn(plain), NUMBER), NUMBER),
            }
            taken = sample(cases, rounds, lambda: None)
    turn, floor = taken.items()
    yield _row(*turn, TURN_TARGET_US)
    yield _row(*floor)


async def _turn(repository: ChatMemoryRepository) -> None:
    log = await repository.read_flow("c", last=21, kind="message", branches=[""])
    log = await repository.extend_flow(log, [MessageEntry(UserMessage(TEXT), turn=log.version)])
    await repository.extend_flow(log, [MessageEntry(UserMessage(TEXT), turn=log.version)])


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
