"""What holds for each store on a SQL database: what it promises when the power fails, and who can reach its files."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.approvals.made import kept, paused
from tests.memory.made import said
from traced_tools.approvals.pending_store import PendingStore
from traced_tools.core import file_access
from traced_tools.memory import SqlChatMemoryRepository

posix = pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")


@pytest.fixture(autouse=True)
def nothing_is_logged_yet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(file_access, "_logged", set())
    mask = os.umask(0)
    yield
    os.umask(mask)


def remember(repository: SqlChatMemoryRepository) -> None:
    repository.append("c", [said("one")], repository.version("c"))


def wait(store: PendingStore) -> None:
    kept(store, paused("a"))


Store = tuple[Callable[[Any], Any], Callable[[Any], None], str]
STORES: dict[str, Store] = {
    "memory": (SqlChatMemoryRepository, remember, "the chat memory"),
    "pending": (PendingStore, wait, "the pending store"),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Store:
    return STORES[request.param]


def test_a_commit_to_sqlite_is_on_disk_before_it_returns(tmp_path: Path, store: Store) -> None:
    make, use, _ = store
    with make(tmp_path / "store.db") as made:
        use(made)
        with made._database.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


def test_a_commit_to_postgresql_is_on_disk_before_it_returns_whatever_the_server_is_set_to(
    postgresql_url: str, store: Store
) -> None:
    make, use, _ = store
    with make(f"{postgresql_url}&options=-csynchronous_commit%3Doff") as made:
        use(made)
        with made._database.connect() as connection:
            assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"


@posix
def test_a_file_behind_a_link_to_a_missing_target_is_for_its_owner_alone(tmp_path: Path, store: Store) -> None:
    make, use, _ = store
    (tmp_path / "target").mkdir()
    (tmp_path / "store.db").symlink_to("target/real.db")
    with make(tmp_path / "store.db") as made:
        use(made)
        modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "target").iterdir()}
    assert modes == dict.fromkeys(("real.db", "real.db-wal", "real.db-shm"), 0o600)


@posix
@pytest.mark.parametrize("end", ["", "-wal"])
@pytest.mark.parametrize(
    ("mode", "verbs"), [(0o666, "read and written"), (0o622, "written"), (0o644, "read"), (0o620, "written")]
)
def test_a_file_that_others_can_read_or_write_is_logged_once(
    tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture, end: str, mode: int, verbs: str
) -> None:
    make, use, name = store
    path = tmp_path / "store.db"
    with make(path) as made:
        use(made)
        (tmp_path / f"store.db{end}").chmod(mode)
        for _ in range(2):
            with make(path) as another:
                another._database.prepare()
    # exporters of other tests may log a loss meanwhile
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    (text,) = [warning for warning in warnings if "store.db" in warning]
    assert f"store.db{end} may be {verbs} by others (mode {mode:o})" in text
    assert name in text
    assert "chmod 600" in text


@posix
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o400])
def test_a_file_that_a_group_may_read_or_only_its_owner_is_used_without_a_word(
    tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    make, use, _ = store
    (tmp_path / "store.db").touch(0o600)
    (tmp_path / "store.db").chmod(mode | 0o200)
    with make(tmp_path / "store.db") as made:
        use(made)
    assert caplog.messages == []


@posix
def test_a_folder_in_which_others_can_replace_a_store_is_logged(
    tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    make, use, name = store
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    with make(folder / "store.db") as made:
        use(made)
    (text,) = caplog.messages
    assert f"the files of {name} can be replaced: their folder {folder} may be written by others" in text
