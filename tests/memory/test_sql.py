"""Conversations in SQLite and PostgreSQL: tables, their versions, broken rows, files, and outages."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from tests.memory.made import append_somehow, said, texts
from tests.memory.sql_store import execute
from tests.sweeps import check_each
from traced_tools import AssistantMessage, ConfigurationError, ToolCall, ToolMessage, UserMessage
from traced_tools.core.messages import ToolResultPart
from traced_tools.errors import ChatMemoryError, ChatMemoryUnavailable, UnreadableConversation
from traced_tools.memory import CompactionEntry, MemoryEntry, MessageEntry, SqlChatMemoryRepository
from traced_tools.memory.sql_schema import CHAT_MEMORY

ROWS = 10_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


@pytest.fixture
def repository(url: str) -> Iterator[SqlChatMemoryRepository]:
    with SqlChatMemoryRepository(url) as repository:
        yield repository


# Tables.


def test_conversations_outlive_the_repository(store: str) -> None:
    with SqlChatMemoryRepository(store) as repository:
        repository.append("c", [said("one"), said("two")], 0, principal="ana")
    with SqlChatMemoryRepository(store) as repository:
        assert texts(repository.read("c", principal="ana")) == ["one", "two"]


def test_two_repositories_on_one_store_see_each_others_appends(store: str) -> None:
    with SqlChatMemoryRepository(store) as one, SqlChatMemoryRepository(store) as other:
        one.append("c", [said("one")], 0)
        other.append("c", [said("two")], 1)
        assert texts(one.read("c")) == ["one", "two"]


def test_many_repositories_that_create_the_tables_at_once_all_succeed(store: str) -> None:
    failures: list[Exception] = []

    def begin(number: int) -> None:
        try:
            with SqlChatMemoryRepository(store) as repository:
                append_somehow(repository, "c", [said(str(number))])
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with SqlChatMemoryRepository(store) as repository:
        assert sorted(texts(repository.read("c"))) == [str(number) for number in range(8)]


def test_a_store_of_an_unknown_schema_version_is_refused_and_left_alone(store: str) -> None:
    with SqlChatMemoryRepository(store) as repository:
        repository.append("c", [said("one")], 0)
    statements = {
        "newer": "UPDATE chat_memory_schema SET version = 99",
        "zero": "UPDATE chat_memory_schema SET version = 0",
        "none": "DELETE FROM chat_memory_schema",
    }
    for shown, statement in zip(("99", "0", "none"), statements.values(), strict=True):
        execute(store, statement)
        with SqlChatMemoryRepository(store) as repository:
            for request in (lambda: repository.read("c"), lambda: repository.append("c", [said("two")], 1)):
                with pytest.raises(ChatMemoryError, match=f"version of the chat memory is {shown}, and this"):
                    request()
    assert execute(store, "SELECT count(*) FROM chat_memory_entries") == [(1,)]


def test_a_store_of_an_earlier_schema_version_is_migrated_once_with_its_conversations(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SqlChatMemoryRepository(store) as repository:
        repository.append("c", [said("one")], 0)
    migrated: list[str] = []

    def migrate(connection: Connection) -> None:
        migrated.append("from 1")
        connection.execute(text("ALTER TABLE chat_memory_conversations ADD COLUMN title TEXT"))

    monkeypatch.setattr(CHAT_MEMORY, "version", 2)
    monkeypatch.setattr(CHAT_MEMORY, "migrations", {1: migrate})
    for _ in range(2):
        with SqlChatMemoryRepository(store) as repository:
            assert texts(repository.read("c")) == ["one"]
    assert migrated == ["from 1"]
    assert execute(store, "SELECT version FROM chat_memory_schema") == [(2,)]
    assert execute(store, "SELECT title FROM chat_memory_conversations") == [(None,)]


def test_a_migration_that_fails_changes_nothing(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with SqlChatMemoryRepository(store) as repository:
        repository.append("c", [said("one")], 0)

    def migrate(connection: Connection) -> None:
        connection.execute(text("ALTER TABLE chat_memory_conversations ADD COLUMN title TEXT"))
        connection.execute(text("SELECT a_column FROM no_table"))

    with monkeypatch.context() as patched, SqlChatMemoryRepository(store) as repository:
        patched.setattr(CHAT_MEMORY, "version", 2)
        patched.setattr(CHAT_MEMORY, "migrations", {1: migrate})
        with pytest.raises(ChatMemoryUnavailable):
            repository.read("c")
    with SqlChatMemoryRepository(store) as repository:
        assert texts(repository.read("c")) == ["one"]


# Rows that cannot be read.

ENTRY = "WHERE position = 2"
BROKEN_ENTRIES = {
    "broken JSON": f'UPDATE chat_memory_entries SET body = \'{{"kind": "message"\' {ENTRY}',
    "no JSON": f"UPDATE chat_memory_entries SET body = '' {ENTRY}",
    "another shape": f'UPDATE chat_memory_entries SET body = \'{{"role": "user", "content": "hi"}}\' {ENTRY}',
    "an unknown kind": f"UPDATE chat_memory_entries SET body = replace(body, '\"message\"', '\"note\"') {ENTRY}",
    "another id": f"UPDATE chat_memory_entries SET id = 'other' {ENTRY}",
    "another turn": f"UPDATE chat_memory_entries SET turn = 7 {ENTRY}",
    "another branch": f"UPDATE chat_memory_entries SET branch = 'a' {ENTRY}",
    "a missing row": f"DELETE FROM chat_memory_entries {ENTRY}",
}
BROKEN_CONVERSATIONS = {
    "broken attributes": "UPDATE chat_memory_conversations SET attributes = '{'",
    "attributes of another shape": "UPDATE chat_memory_conversations SET attributes = '[1]'",
    "an impossible version": "UPDATE chat_memory_conversations SET version = -1",
    "an impossible time": "UPDATE chat_memory_conversations SET expires_at = 9000000000000000000",
}


@pytest.mark.parametrize("broken", BROKEN_ENTRIES)
def test_an_entry_that_cannot_be_read_is_named_and_left_alone(store: str, broken: str) -> None:
    with SqlChatMemoryRepository(store) as repository:
        repository.append("c-42", [said("a-secret-one"), said("a-secret-two"), said("a-secret-three")], 0)
        execute(store, BROKEN_ENTRIES[broken])
        rows = execute(store, "SELECT * FROM chat_memory_entries ORDER BY position")
        with pytest.raises(UnreadableConversation, match="entry 2 of the conversation 'c-42' cannot be") as caught:
            repository.read("c-42")
        assert (caught.value.conversation_id, caught.value.row) == ("c-42", "entry 2")
        assert "a-secret" not in str(caught.value) + repr(caught.value.__context__)
        assert texts(repository.read("c-42", last=1)) == ["a-secret-three"]
        assert execute(store, "SELECT * FROM chat_memory_entries ORDER BY position") == rows
        assert repository.delete("c-42") is True


@pytest.mark.parametrize("broken", BROKEN_CONVERSATIONS)
def test_a_conversation_that_cannot_be_read_is_named_and_not_overwritten(store: str, broken: str) -> None:
    with SqlChatMemoryRepository(store) as repository:
        repository.append("c-42", [said("one")], 0)
        execute(store, BROKEN_CONVERSATIONS[broken])
        rows = execute(store, "SELECT * FROM chat_memory_conversations")
        for request in (
            lambda: repository.read("c-42"),
            lambda: repository.append("c-42", [said("two")], 1),
            lambda: repository.append("c-42", [said("new")], 0),
            lambda: repository.delete("c-42"),
            lambda: repository.conversations(),
        ):
            with pytest.raises(UnreadableConversation, match="chat_memory_conversations of the conversation 'c-42'"):
                request()
        assert execute(store, "SELECT * FROM chat_memory_conversations") == rows
        assert execute(store, "SELECT count(*) FROM chat_memory_entries") == [(1,)]


def test_an_append_over_rows_that_are_already_there_is_refused_and_does_not_hang(store: str) -> None:
    with SqlChatMemoryRepository(store) as repository:
        repository.append("c", [said("one"), said("two")], 0)
        execute(store, "UPDATE chat_memory_conversations SET version = 1")
        with pytest.raises(ChatMemoryError, match="the store refuses entries of the conversation 'c'"):
            repository.append("c", [said("other")], 1)
        assert execute(store, "SELECT count(*) FROM chat_memory_entries") == [(2,)]


# How much is read.


def steps_to_read(url: str, **part: Any) -> dict[str, tuple[int, int]]:
    """Return by conversation the steps of SQLite's virtual machine for a part of its log, and the number of entries.

    The steps don't depend on the machine and its load.
    """
    steps = {}
    for name in ("short", "long"):
        with SqlChatMemoryRepository(url) as repository:
            counted = [0]

            def count(counted: list[int] = counted) -> int:
                counted[0] += 1
                return 0

            repository.version(name)
            repository._idle[0].set_progress_handler(count, 1)
            read = repository.read(name, **part)
        steps[name] = (counted[0], len(read.entries))
    return steps


@pytest.mark.parametrize(
    "part", [{"last": 20}, {"last_turns": 5}, {"kind": "compaction", "last": 1}, {"after": 60, "limit": 20}], ids=str
)
def test_a_part_of_a_long_conversation_costs_what_it_costs_of_a_short_one(url: str, part: Any) -> None:
    with SqlChatMemoryRepository(url) as repository:
        for name, number in (("short", 100), ("long", ROWS)):
            repository.append(name, [said("word " * 10, 1 + turn // 2) for turn in range(number)], 0)
    steps = steps_to_read(url, **part)
    assert steps["short"][1] == steps["long"][1]
    assert 20 < steps["short"][0] < 1500
    assert steps["long"][0] < steps["short"][0] * 1.1 + 20


@pytest.mark.parametrize(
    "part",
    [{"last": 20}, {"last": 20, "kind": "message"}, {"kind": "compaction", "last": 1}, {"after": 60, "limit": 20}],
    ids=str,
)
def test_a_part_of_a_branch_costs_the_same_however_much_others_have_written_between(url: str, part: Any) -> None:
    with SqlChatMemoryRepository(url) as repository:
        for name, number in (("short", 1), ("long", ROWS // 10)):
            own = [said("word", 1 + turn) for turn in range(100)]
            other = [said("word", 1, branch="a") for _ in range(number)]
            folded = [
                CompactionEntry(turn=1, branch="a", through=1, trigger="turns", strategy="keep_turns")
                for _ in range(number)
            ]
            entries: list[MemoryEntry] = [*own[:70], *other, *folded, *own[70:]]
            repository.append(name, entries, 0)
    steps = steps_to_read(url, branches=[""], **part)
    assert steps["short"][1] == steps["long"][1]
    assert steps["long"][0] < steps["short"][0] * 1.1 + 20


@pytest.mark.slow
def test_postgresql_finds_a_part_of_a_long_conversation_by_indexes(postgresql_url: str) -> None:
    with SqlChatMemoryRepository(postgresql_url) as repository:
        for name in ("long", "other"):
            repository.append(name, [said("word", 1 + turn // 2) for turn in range(ROWS)], 0)
        key = repository.find_conversation("long")
        assert key is not None
        execute(postgresql_url, "ANALYZE")
        for condition in (
            "position > 0 AND position <= 10000 ORDER BY position DESC LIMIT 20",
            "turn >= 4996 AND position + 0 > 0 AND position + 0 <= 10000 ORDER BY position + 0",
            "branch = '' AND position > 0 AND position <= 10000 ORDER BY position DESC LIMIT 20",
            "kind = 'compaction' AND position > 0 AND position <= 10000 ORDER BY position DESC LIMIT 1",
        ):
            query = f"SELECT body FROM chat_memory_entries WHERE conversation_key = '{key.key}' AND {condition}"
            plan = "\n".join(line for (line,) in execute(postgresql_url, f"EXPLAIN {query}"))
            assert "Index Scan" in plan, plan
            assert "Seq Scan" not in plan, plan


# Files, URLs and outages.


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_only_its_owner_can_read_a_file_that_the_repository_creates(path: Path, repository: Any) -> None:
    repository.append("c", [said("one")], 0)
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name


def test_an_append_with_calls_or_results_is_synced_and_one_of_words_alone_is_not(path: Path, repository: Any) -> None:
    repository.append("c", [said('"type":"tool_call"')], 0)
    (connection,) = repository._idle
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    call, result = ToolCall("pay", {}, id="c1"), ToolResultPart(call_id="c1", name="pay", content="paid")
    appends = {
        "words": (said('"type":"tool_call" and \\"type\\":\\"tool_result\\"'), False),
        "a call": (MessageEntry(AssistantMessage([call]), turn=1), True),
        "a result": (MessageEntry(ToolMessage([result]), turn=1), True),
        "more words": (said("Thanks."), False),
    }
    for version, (name, (entry, synced)) in enumerate(appends.items(), 1):
        statements.clear()
        repository.append("c", [entry], version)
        last = [each for each in statements if each.startswith(("PRAGMA", "INSERT", "COMMIT"))]
        inserted = last.index(next(each for each in last if each.startswith("INSERT")))
        assert last[inserted + 1 :] == ["COMMIT", *(["PRAGMA synchronous=NORMAL"] if synced else [])], name
        assert ("PRAGMA synchronous=FULL" in last[:inserted]) == synced, name
    assert connection.execute("PRAGMA synchronous").fetchone() == (1,)


def test_a_repository_creates_nothing_before_it_is_used(path: Path, repository: Any) -> None:
    assert repr(repository).endswith("memory.db')")
    assert not path.exists()


def test_urls_that_cannot_be_used_are_refused_without_showing_their_password() -> None:
    cases = {
        "sqlite://": "needs a file",
        "sqlite:///:memory:": "needs a file",
        "mysql://user:a-secret@host/d": "no chat memory for mysql",
        "postgresql://user:a-secret@host:port/d": "invalid",
    }

    def is_refused(case: tuple[str, str]) -> None:
        with pytest.raises(ConfigurationError, match=case[1]) as caught:
            SqlChatMemoryRepository(case[0])
        assert "a-secret" not in str(caught.value)

    check_each({url: (url, problem) for url, problem in cases.items()}, is_refused)
    with pytest.raises(TypeError, match="url must be a path or a URL as str"):
        SqlChatMemoryRepository(5)  # type: ignore[arg-type]


def test_a_path_and_its_url_are_the_same_store(path: Path) -> None:
    for store in (path, str(path), f"sqlite:///{path}"):
        with SqlChatMemoryRepository(store) as repository:
            repository.append("c", [MessageEntry(UserMessage("Hello."), turn=1)], repository.version("c"))
    with SqlChatMemoryRepository(path) as repository:
        assert repository.version("c") == 3


def test_a_store_that_is_down_is_reported_without_contents(tmp_path: Path) -> None:
    (tmp_path / "no database").write_text("This is no database. " * 100)
    cases = {
        "a folder": f"sqlite:///{tmp_path}",
        "no folder": f"sqlite:///{tmp_path}/missing/memory.db",
        "no database": f"sqlite:///{tmp_path}/no database",
        "nobody listens": "postgresql+psycopg://user:a-secret-password@127.0.0.1:9/d",
    }

    def is_reported(url: str) -> None:
        with SqlChatMemoryRepository(url) as repository, pytest.raises(ChatMemoryUnavailable) as caught:
            repository.append("c", [said("a-secret-text")], 0, principal="a-secret-owner")
        assert "a-secret" not in str(caught.value) + repr(caught.value.__context__) + repr(repository)
        assert "(" in str(caught.value)

    check_each(cases, is_reported)


def test_an_error_of_the_database_has_no_content(path: Path, repository: Any) -> None:
    repository.append("c", [said("one")], 0)
    execute(f"sqlite:///{path}", "DROP TABLE chat_memory_entries")
    with pytest.raises(ChatMemoryUnavailable, match="OperationalError, SQLITE_ERROR") as caught:
        repository.append("c", [said("a-secret-text")], 1)
    assert "a-secret" not in str(caught.value)
    assert caught.value.__context__ is None
    assert repository.version("c") == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_forked_child_has_connections_of_its_own(store: str) -> None:
    with SqlChatMemoryRepository(store) as repository:
        repository.append("c", [said("parent")], 0)
        child = os.fork()
        if not child:
            status = 1
            try:
                repository.append("c", [said("child")], 1)
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        repository.append("c", [said("parent again")], 2)
        assert texts(repository.read("c")) == ["parent", "child", "parent again"]
