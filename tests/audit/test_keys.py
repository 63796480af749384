"""Where a trail's key comes from, and that nobody else gets to see it."""

from __future__ import annotations

import logging
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.audit.trails import KEY, SECRET, bodies, intent, settle, unavailable, write
from traced_tools.audit.digests import AuditKey
from traced_tools.audit.keys import KEY_VARIABLE, load_key
from traced_tools.audit.trail import AuditTrail
from traced_tools.errors import ConfigurationError

SERVER = "postgresql+psycopg://me:pAsSwOrD@127.0.0.1:1/audit"


@pytest.fixture(autouse=True)
def no_key_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


def test_the_argument_overrides_the_environment_and_the_environment_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "audit.db"
    in_file = load_key(None, store, create=True)
    assert load_key(None, store).id == in_file.id
    monkeypatch.setenv(KEY_VARIABLE, "the environment's key")
    assert load_key(None, store).id == AuditKey(b"the environment's key").id
    assert load_key("the argument's own key", store).id == AuditKey(b"the argument's own key").id
    assert load_key(b"the argument's own key", store).id == load_key("the argument's own key", store).id


def test_the_content_of_the_key_file_is_valid_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = load_key(None, tmp_path / "audit.db", create=True)
    text = (tmp_path / "audit.db.key").read_text().strip()
    assert len(bytes.fromhex(text)) == 32
    monkeypatch.setenv(KEY_VARIABLE, text)
    assert load_key(None, None).id == made.id


def test_the_key_file_is_for_its_owner_alone_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mask = os.umask(0)
    try:
        for _ in range(3):
            load_key(None, tmp_path / "audit.db", create=True)
    finally:
        os.umask(mask)
    path = tmp_path / "audit.db.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (record,) = caplog.records
    assert str(path) in record.getMessage()
    assert path.read_text().strip() not in caplog.text
    assert [each.name for each in tmp_path.iterdir()] == ["audit.db.key"]


def test_concurrent_callers_create_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda _: load_key(None, tmp_path / "audit.db", create=True).id, range(64)))
    assert len(set(found)) == 1
    assert [each.name for each in tmp_path.iterdir()] == ["audit.db.key"]


def test_reading_creates_no_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=KEY_VARIABLE):
        load_key(None, tmp_path / "audit.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    load_key(None, tmp_path / "audit.db", create=True)
    path = tmp_path / "audit.db.key"
    path.chmod(mode)
    with pytest.raises(ConfigurationError, match="chmod 600") as caught:
        load_key(None, tmp_path / "audit.db")
    assert path.read_text().strip() not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"  \n", b"short\n"])
def test_a_file_without_a_key_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "audit.db.key"
    path.touch(mode=0o600)
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="at least 16 bytes"):
        load_key(None, tmp_path / "audit.db", create=True)


def test_a_folder_in_place_of_the_key_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "audit.db.key").mkdir()
    with pytest.raises(ConfigurationError, match="IsADirectoryError"):
        load_key(None, tmp_path / "audit.db", create=True)


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="FileNotFoundError"):
        load_key(None, tmp_path / "missing" / "audit.db", create=True)


@pytest.mark.parametrize("key", [17, object(), ["k" * 20], "short", b"short"])
def test_no_error_contains_part_of_a_key(tmp_path: Path, key: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        AuditTrail(tmp_path / "audit.db", key=key)  # type: ignore[arg-type]
    assert "short" not in str(caught.value).replace("too short", "")
    assert list(tmp_path.iterdir()) == []


def test_a_short_key_in_the_environment_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "short")
    with pytest.raises(ConfigurationError, match="at least 16 bytes"):
        AuditTrail(tmp_path / "audit.db")


def test_a_server_store_needs_a_key_from_elsewhere() -> None:
    with pytest.raises(ConfigurationError, match=KEY_VARIABLE) as caught:
        AuditTrail(SERVER)
    assert "pAsSwOrD" not in str(caught.value)


def test_a_store_without_a_usable_key_records_nothing_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "audit.db.key").write_text("short")
    (tmp_path / "audit.db.key").chmod(0o600)
    trail = AuditTrail(tmp_path / "audit.db")
    assert "at least 16 bytes" in str(unavailable(trail, intent()))
    (tmp_path / "audit.db.key").write_text(KEY.decode())
    settle(trail, intent("later"))
    trail.close()
    assert [each["call_id"] for each in bodies(tmp_path / "audit.db") if each["kind"] == "intent"] == [
        "call_1",
        "later",
    ]


def test_the_key_is_in_its_file_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    key = f"{SECRET} and so on, so that it is long"
    with AuditTrail(tmp_path / "audit.db", key=key, content="full") as trail:
        write(trail, intent())
    seen = [repr(trail), caplog.text, *(each.read_bytes().decode("latin-1") for each in tmp_path.iterdir())]
    assert not [text for text in seen if SECRET in text]
