"""How `traced-tools audit` ends as a process: its exit status is a verdict, or says that there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.audit.commanded import COMMANDS, RUN, complaint, make_store, tamper
from tests.audit.made import Chain, insert, many


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_store(tmp_path, monkeypatch)


SLOW_BUT_VERIFY = [
    pytest.param(each, id=each[0], marks=() if each[0] == "verify" else pytest.mark.slow) for each in COMMANDS
]
MAIN = "from traced_tools.cli import main; main()"


def process(*arguments: str, code: str = MAIN, stdout: Any = subprocess.PIPE, **more: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, "audit", *arguments],
        env={**os.environ, **more},
        stdout=stdout,
        stderr=subprocess.PIPE,
    )


def ended(running: subprocess.Popen[bytes]) -> tuple[int, str]:
    """The exit status, and what was said on standard error."""
    _, err = running.communicate(timeout=60)
    return running.returncode, err.decode()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("changed", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("command", SLOW_BUT_VERIFY)
def test_output_that_cannot_be_written_exits_with_2(store: Path, command: list[str], changed: bool) -> None:
    if changed:
        tamper(store)
    with open("/dev/full", "wb") as full:
        result = ended(process(*command, stdout=full))
    assert result == (2, "audit: standard output cannot be written: No space left on device\n")


CLOSED = f"import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, '-c', {MAIN!r}, *sys.argv[1:]])"


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: each[0])
def test_closed_standard_output_exits_with_2(store: Path, command: list[str]) -> None:
    result = ended(process(*command, code=CLOSED))
    assert result == (2, "audit: standard output cannot be written: it is closed\n")


@pytest.mark.slow
def test_an_export_to_a_file_needs_no_standard_output(store: Path, tmp_path: Path) -> None:
    command = ("export", "--format", "jsonl", "--output", str(tmp_path / "records"))
    status, _ = ended(process(*command, code=CLOSED))
    assert (status, len((tmp_path / "records").read_text().splitlines())) == (0, 11)


def test_a_file_name_that_is_too_long_exits_with_2(store: Path) -> None:
    assert "cannot be read: File name too long" in complaint("verify", "--store", "x" * 300)


@pytest.mark.parametrize("command", COMMANDS[:4], ids=lambda each: each[0])
def test_an_unexpected_error_exits_with_2(store: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    def fails(*_: object, **__: object) -> None:
        raise LookupError("s3cret")

    monkeypatch.setattr("traced_tools.cli.audit.commands.AuditReader", fails)
    monkeypatch.setattr("traced_tools.audit.verifying.walk.verify", fails)
    assert complaint(*command) == "audit: unexpected LookupError; please report it\n"


def test_a_verdict_sets_the_exit_status_even_if_nothing_reads_it(store: Path) -> None:
    tamper(store)
    read, write_end = os.pipe()
    os.close(read)
    try:
        assert ended(process("verify", stdout=write_end)) == (1, "")
    finally:
        os.close(write_end)


@pytest.mark.slow
def test_a_closed_pipe_ends_the_command_quietly(tmp_path: Path) -> None:
    insert(tmp_path / "audit.db", many(6_000, chains=1))
    for command in (
        ["export", "--format", "jsonl"],
        ["list", "--limit", "2000"],
        ["list", "--limit", "5000", "--json"],
    ):
        with process(*command, "--store", str(tmp_path / "audit.db")) as running:
            assert running.stdout is not None
            assert running.stderr is not None
            running.stdout.read(10)
            running.stdout.close()
            assert running.stderr.read() == b""
            assert running.wait(60) == 0


@pytest.mark.slow
def test_a_terminal_without_unicode_gets_escaped_characters(store: Path) -> None:
    chain = Chain()
    chain.call(run_id=RUN, agent="Zoë")
    insert(store.with_name("zoe.db"), chain.rows)
    running = process("show", RUN, "--store", str(store.with_name("zoe.db")), PYTHONIOENCODING="ascii")
    out, err = running.communicate(timeout=60)
    assert (running.returncode, err) == (0, b"")
    assert rb"Zo\xeb" in out
