"""Other users can neither read nor replace what the proof rests on: modes of new files, and keys that are refused."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.audit.commanded import audit
from tests.audit.trails import KEY, bodies, intent, unavailable, write
from traced_tools.audit.keys import KEY_VARIABLE, load_key
from traced_tools.audit.trail import AuditTrail
from traced_tools.audit.writing.checkpoints import Signer
from traced_tools.core import file_access
from traced_tools.errors import ConfigurationError

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes and owners are POSIX's")
SIGNING_KEY = bytes(range(32))
SOMEBODY = 4711
DOCS = Path(__file__).parents[2] / "docs" / "audit-reading.md"
SQLITE3 = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute(sys.argv[2])"
"""Stands for SQLite's own shell, which a machine may lack."""


@pytest.fixture(autouse=True)
def no_key_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    monkeypatch.setattr(file_access, "_logged", set())


@pytest.fixture
def open_umask() -> Iterator[None]:
    mask = os.umask(0)
    yield
    os.umask(mask)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "folder"
    found.mkdir(0o700)
    return found


def file(folder: Path, name: str, content: bytes, mode: int = 0o600) -> Path:
    path = folder / name
    path.write_bytes(content)
    path.chmod(mode)
    return path


def sign(folder: Path) -> None:
    Signer(folder / "signing.key")


def digest(folder: Path) -> None:
    load_key(None, folder / "audit.db", create=True)


def verify(folder: Path) -> None:
    """Use the public key as the command does; what the command complains of is raised."""
    store = folder.parent / "audit.db"
    if not store.exists():
        with AuditTrail(store, key=KEY, signing_key=SIGNING_KEY) as trail:
            write(trail, intent())
    result = audit("verify", "--store", store, "--public-key", folder / "public.key")
    if result.exit_code == 2:
        raise ConfigurationError(result.stderr)
    assert result.exit_code == 0


KEYS: dict[str, tuple[str, bytes, Callable[[Path], None]]] = {
    "signing": ("signing.key", SIGNING_KEY, sign),
    "digests": ("audit.db.key", b"k" * 32, digest),
    "public": (
        "public.key",
        Ed25519PrivateKey.from_private_bytes(SIGNING_KEY).public_key().public_bytes_raw(),
        verify,
    ),
}


def key_in(folder: Path, which: str, mode: int = 0o600) -> tuple[Path, Callable[[Path], None]]:
    name, content, use = KEYS[which]
    return file(folder, name, content, mode), use


def test_every_file_of_a_trail_is_for_its_owner_alone(path: Path, open_umask: None) -> None:
    trail = AuditTrail(path)
    write(trail, intent())
    trail.checkpoint()
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    assert modes == dict.fromkeys(
        ("audit.db", "audit.db-wal", "audit.db-shm", "audit.db.key", "audit.db.checkpoints"), 0o600
    )
    trail.close()


def test_a_copy_that_is_made_as_documented_is_for_its_owner_alone(
    path: Path, open_umask: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (command,) = re.findall(r"^\(umask .*VACUUM INTO.*\)$", DOCS.read_text(), re.MULTILINE)
    sqlite3 = file(path.parent, "sqlite3", f"#!{sys.executable}\n{SQLITE3}".encode(), 0o700)
    trail = AuditTrail(path, key=KEY)
    write(trail, intent())
    shell = {"PATH": f"{sqlite3.parent}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", command], cwd=path.parent, env=shell, check=True)
    trail.close()
    copy = path.with_name("copy.db")
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert [each["call_id"] for each in bodies(copy)] == ["call_1"]


@pytest.mark.parametrize("format", ["jsonl", "csv"])
def test_an_export_is_for_its_owner_alone(path: Path, open_umask: None, format: str) -> None:
    with AuditTrail(path, key=KEY) as trail:
        write(trail, intent())
    output = path.with_name("exported")
    assert audit("export", "--format", format, "--store", path, "--output", output).exit_code == 0
    assert stat.S_IMODE(output.stat().st_mode) == 0o600


def test_the_files_of_a_trail_behind_links_to_missing_targets_are_for_their_owner_alone(
    path: Path, open_umask: None
) -> None:
    target = path.parent / "target"
    target.mkdir(0o700)
    for end in ("", ".key", ".checkpoints"):
        Path(f"{path}{end}").symlink_to(f"target/real{end}")
    with AuditTrail(path) as trail:
        write(trail, intent())
        trail.checkpoint()
        modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in target.iterdir()}
    assert modes == dict.fromkeys(("real", "real-wal", "real-shm", "real.key", "real.checkpoints"), 0o600)


def test_an_existing_file_of_exported_records_that_others_can_read_is_logged(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with AuditTrail(folder / "audit.db", key=KEY) as trail:
        write(trail, intent())
    output = file(folder, "exported", b"", 0o644)
    assert audit("export", "--format", "csv", "--store", folder / "audit.db", "--output", output).exit_code == 0
    (text,) = caplog.messages
    assert text.startswith(f"{output} may be read by others (mode 644), who can read records of the audit trail")


@pytest.mark.parametrize(
    ("which", "mode"),
    [
        *(("signing", mode) for mode in (0o644, 0o640, 0o620, 0o602, 0o444)),
        *(("digests", mode) for mode in (0o644, 0o640, 0o620, 0o602, 0o444)),
        *(("public", mode) for mode in (0o646, 0o666)),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value:o}",
)
def test_a_key_that_others_can_read_or_write_is_refused(folder: Path, which: str, mode: int) -> None:
    path, use = key_in(folder, which, mode)
    with pytest.raises(ConfigurationError, match="chmod") as caught:
        use(folder)
    assert str(path) in str(caught.value)
    assert f"{mode:o}" in str(caught.value)
    assert KEYS[which][1].decode("latin-1") not in str(caught.value)


@pytest.mark.parametrize("command", [["list"], ["show", "run-1"]], ids=["list", "show"])
def test_verified_answers_refuse_a_public_key_that_others_can_write(folder: Path, command: list[str]) -> None:
    path, use = key_in(folder, "public")
    use(folder)
    path.chmod(0o646)
    store = folder.parent / "audit.db"
    result = audit(*command, "--verified", "--store", store, "--public-key", path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "chmod" in result.stderr


@pytest.mark.parametrize("which", KEYS)
@pytest.mark.parametrize("mode", [0o777, 0o757, 0o703])
def test_a_key_that_others_can_replace_is_refused(folder: Path, which: str, mode: int) -> None:
    _, use = key_in(folder, which)
    folder.chmod(mode)
    with pytest.raises(ConfigurationError, match=r"can be replaced.*folder"):
        use(folder)


def test_a_key_is_not_created_in_a_folder_where_others_can_replace_it(folder: Path) -> None:
    folder.chmod(0o777)
    with pytest.raises(ConfigurationError, match="can be replaced"):
        digest(folder)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("which", KEYS)
def test_the_folder_that_a_link_points_to_is_checked(folder: Path, tmp_path: Path, which: str) -> None:
    path, use = key_in(folder, which)
    target = tmp_path / "target"
    target.mkdir()
    path.rename(target / "real")
    path.symlink_to(target / "real")
    use(folder)
    target.chmod(0o777)
    with pytest.raises(ConfigurationError, match="can be replaced"):
        use(folder)


def test_the_folder_of_each_link_in_a_series_is_checked(folder: Path, tmp_path: Path) -> None:
    path, use = key_in(folder, "signing")
    way = tmp_path / "way"
    way.mkdir()
    path.rename(tmp_path / "real")
    (way / "next").symlink_to("../real")
    path.symlink_to(way / "next")
    use(folder)
    way.chmod(0o777)
    with pytest.raises(ConfigurationError, match=f"its folder {way} may be"):
        use(folder)


class Owners:
    """Has files belong to somebody else, as far as the package can see."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.foreign: set[int] = set()
        real, real_of_file = os.stat, os.fstat
        monkeypatch.setattr(file_access.os, "fstat", lambda file: self._seen(real_of_file(file)))
        monkeypatch.setattr(file_access.os, "stat", lambda path, **options: self._seen(real(path, **options)))

    def _seen(self, info: os.stat_result) -> os.stat_result:
        return os.stat_result((*info[:4], SOMEBODY, *info[5:])) if info.st_ino in self.foreign else info


@pytest.fixture
def owners(monkeypatch: pytest.MonkeyPatch) -> Owners:
    return Owners(monkeypatch)


@pytest.mark.parametrize("which", ["signing", "digests"])
def test_a_key_that_belongs_to_another_user_is_refused(
    folder: Path, owners: Owners, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    path, use = key_in(folder, which)
    use(folder)
    monkeypatch.setattr(file_access.os, "geteuid", lambda: SOMEBODY + 1)
    owners.foreign.add(path.stat().st_ino)
    with pytest.raises(ConfigurationError, match=f"uid {SOMEBODY}.*belongs to the user of this process"):
        use(folder)


@pytest.mark.parametrize("which", ["signing", "digests"])
def test_root_may_use_a_key_of_another_user_and_gets_no_chown_advice(
    folder: Path, owners: Owners, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, which: str
) -> None:
    path, use = key_in(folder, which)
    monkeypatch.setattr(file_access.os, "geteuid", lambda: 0)
    owners.foreign |= {path.stat().st_ino, folder.stat().st_ino}
    use(folder)
    about_file, about_folder = caplog.messages
    assert f"belongs to another user (uid {SOMEBODY})" in about_file
    assert "run this process as that user" in about_folder
    assert "chown" not in caplog.text


def test_a_public_key_of_another_user_or_writable_by_a_group_is_accepted_and_logged(
    folder: Path, owners: Owners, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, use = key_in(folder, "public", 0o664)
    monkeypatch.setattr(file_access.os, "geteuid", lambda: SOMEBODY + 1)
    owners.foreign.add(path.stat().st_ino)
    use(folder)
    messages = [text for text in caplog.messages if text.startswith("the public key")]
    assert f"uid {SOMEBODY}" in messages[0]
    assert "mode 664" in messages[1]


def test_a_digest_key_that_others_can_replace_is_accepted_for_reading_and_logged(
    folder: Path, owners: Owners, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, _ = key_in(folder, "digests")
    monkeypatch.setattr(file_access.os, "geteuid", lambda: SOMEBODY + 1)
    owners.foreign.add(path.stat().st_ino)
    folder.chmod(0o777)
    assert load_key(None, folder / "audit.db").id
    assert f"uid {SOMEBODY}" in caplog.messages[0]
    assert "can be replaced" in caplog.messages[1]


@pytest.mark.parametrize("which", KEYS)
def test_a_key_in_the_folder_of_another_user_is_accepted_and_logged(
    folder: Path, owners: Owners, caplog: pytest.LogCaptureFixture, which: str
) -> None:
    _, use = key_in(folder, which)
    owners.foreign.add(folder.stat().st_ino)
    use(folder)
    (message,) = caplog.messages
    assert f"can be replaced: its folder {folder} belongs to another user (uid {SOMEBODY})" in message


@pytest.mark.parametrize("which", KEYS)
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o1777])
def test_a_key_in_a_closed_or_sticky_folder_is_accepted(folder: Path, which: str, mode: int) -> None:
    _, use = key_in(folder, which)
    folder.chmod(mode)
    use(folder)


def test_the_group_may_read_a_signing_key_that_root_owns_as_kubernetes_mounts_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, use = key_in(folder, "signing", 0o440)
    if path.stat().st_uid != 0:
        pytest.skip("only root can make root's files")
    with pytest.raises(ConfigurationError):
        use(folder)
    monkeypatch.setattr(file_access.os, "geteuid", lambda: SOMEBODY)
    use(folder)
    for mode in (0o460, 0o444, 0o644):
        path.chmod(mode)
        with pytest.raises(ConfigurationError):
            use(folder)


def test_a_key_from_a_pipe_is_accepted(folder: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, SIGNING_KEY)
    os.close(writing)
    Signer(f"/dev/fd/{reading}")
    os.close(reading)


def test_a_folder_whose_group_can_replace_a_key_is_logged_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    key_in(folder, "signing")
    folder.chmod(0o770)
    for _ in range(2):
        sign(folder)
    (message,) = caplog.messages
    assert "chmod go-w" in message
    assert "mode 770" in message


def test_a_trail_is_refused_at_once_if_others_can_read_its_key_or_replace_it(folder: Path) -> None:
    folder.chmod(0o777)
    with pytest.raises(ConfigurationError, match="can be replaced"):
        AuditTrail(folder / "audit.db")
    assert list(folder.iterdir()) == []
    AuditTrail(folder / "audit.db", key=KEY)
    folder.chmod(0o700)
    key_in(folder, "digests", 0o620)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        AuditTrail(folder / "audit.db")


def test_a_trail_whose_key_becomes_readable_to_others_denies_and_reports_why(folder: Path) -> None:
    path, _ = key_in(folder, "digests")
    trail = AuditTrail(folder / "audit.db")
    path.chmod(0o620)
    assert "chmod 600" in str(unavailable(trail, intent()))
    trail.close(0)


@pytest.mark.parametrize("name", ["audit.db", "audit.db-wal", "audit.db.checkpoints"])
def test_a_store_or_its_checkpoints_that_others_can_write_are_logged_once(
    folder: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    with AuditTrail(folder / "audit.db", key=KEY) as open_trail:
        write(open_trail, intent())
        open_trail.checkpoint()
        (folder / name).chmod(0o666)
        for _ in range(2):
            with AuditTrail(folder / "audit.db", key=KEY) as trail:
                write(trail, intent())
    (message,) = caplog.messages
    assert message.startswith(f"{folder / name} may be written by others (mode 666)")
    assert "chmod 600" in message
    assert len(bodies(folder / "audit.db")) == 7


def test_a_folder_in_which_others_can_replace_the_store_is_logged(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.chmod(0o777)
    with AuditTrail(folder / "audit.db", key=KEY) as trail:
        write(trail, intent())
    (message,) = caplog.messages
    assert str(folder) in message
    assert "mode 777" in message


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can give files away")
def test_a_store_of_another_user_is_logged(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with AuditTrail(folder / "audit.db", key=KEY) as trail:
        write(trail, intent())
    os.chown(folder / "audit.db", SOMEBODY, -1)
    with AuditTrail(folder / "audit.db", key=KEY) as trail:
        write(trail, intent())
    (message,) = caplog.messages
    assert f"uid {SOMEBODY}" in message
