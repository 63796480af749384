"""The JSON Lines exporter when a writer is killed, the disk fails or the file changes."""

from __future__ import annotations

import logging
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.events.files import exported, ids, ids_in, put_away
from tests.events.made import batch, started
from tests.waiting import PATIENCE
from traced_tools.events import ExportFailed, JsonLinesExporter
from traced_tools.events.exporters.event_file import event_json

ROOT = Path(__file__).parents[2]


# What others do to the file.


@pytest.mark.parametrize("what", ["rename", "unlink"])
def test_a_file_that_was_renamed_or_removed_is_created_again(tmp_path: Path, what: str) -> None:
    path, aside = tmp_path / "events.jsonl", tmp_path / "events.jsonl.1"
    exporter = JsonLinesExporter(path)
    exporter.export(batch(1))
    if what == "rename":
        path.rename(aside)
    else:
        path.unlink()
    exporter.export(batch(1, 2))
    exporter.close()
    assert ids_in(path) == ids(batch(1, 2))
    assert what == "unlink" or ids_in(aside) == ids(batch(1))


def test_a_file_that_is_copied_and_truncated_is_appended_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    exporter = JsonLinesExporter(path)
    exporter.export(batch(3))
    os.truncate(path, 0)
    exporter.export(batch(1, 4))
    exporter.close()
    assert ids_in(path) == ids(batch(1, 4))


def test_rotation_follows_a_symbolic_link_and_ignores_a_change_of_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    path = tmp_path / "there" / "events.jsonl"
    monkeypatch.chdir(tmp_path)
    os.symlink("there/events.jsonl", "link.jsonl")
    exporter = JsonLinesExporter("link.jsonl", max_bytes=1)
    exporter.export(batch(1))
    monkeypatch.chdir("/")
    exporter.export(batch(1, 2))
    exporter.close()
    assert ids_in(*put_away(path), tmp_path / "link.jsonl") == ids(batch(2))
    assert (tmp_path / "link.jsonl").is_symlink()


def test_a_folder_that_went_away_fails_until_it_is_back(tmp_path: Path) -> None:
    path = tmp_path / "there" / "events.jsonl"
    path.parent.mkdir()
    exporter = JsonLinesExporter(path)
    path.parent.rename(tmp_path / "elsewhere")
    with pytest.raises(ExportFailed, match=r"events could not be written to .*events\.jsonl \(ENOENT\)") as raised:
        exporter.export(batch(1))
    assert raised.value.retryable
    assert raised.value.__context__ is None
    path.parent.mkdir()
    exporter.export(batch(1))
    exporter.close()
    assert ids_in(path) == ids(batch(1))


@pytest.mark.slow
def test_several_processes_and_threads_append_complete_lines_and_rotate_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    code = f"""
from tests.events.made import batch
from traced_tools.events import JsonLinesExporter
import sys
exporter = JsonLinesExporter({str(path)!r}, max_bytes=100_000, fsync="never")
for number in range(50):
    exporter.export(batch(10, int(sys.argv[1]) + 10 * number, agent="x" * 500))
exporter.close()
"""
    processes = [subprocess.Popen([sys.executable, "-c", code, str(1 + 500 * each)], cwd=ROOT) for each in range(3)]

    def write() -> None:
        exporter = JsonLinesExporter(path, max_bytes=100_000, fsync="never")
        for number in range(50):
            exporter.export(batch(10, 1501 + 10 * number, agent="x" * 500))
        exporter.close()

    thread = threading.Thread(target=write)
    thread.start()
    assert [process.wait(10 * PATIENCE) for process in processes] == [0, 0, 0]
    thread.join(PATIENCE)
    files = [*put_away(path), path]
    assert len(files) > 5
    assert sorted(map(str, ids_in(*files))) == ids(batch(2000))
    assert all(each.stat().st_size <= 100_000 for each in files)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_its_own_lock(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    exporter = JsonLinesExporter(path)
    exporter.export(batch(1))
    code = f"""
import os
from tests.events.made import batch
from traced_tools.events import JsonLinesExporter
exporter = JsonLinesExporter({str(path)!r})
before = exporter._file._file.fileno()
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    os.read(reading, 1)  # until its parent has the lock
with exporter._file._locked():
    if child == 0:
        os._exit(3)  # it could take the lock while its parent has it
    os.write(writing, b".")
    done = os.waitpid(child, os.WNOHANG)
    import time
    until = time.monotonic() + 0.5
    while done[0] == 0 and time.monotonic() < until:
        done = os.waitpid(child, os.WNOHANG)
print(done[0] == 0)  # it still waited
os.waitpid(child, 0)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=10 * PATIENCE)
    assert done.stdout == "True\n", done.stderr
    exporter.close()


# The last line.


def test_an_incomplete_last_line_is_moved_and_a_complete_one_gets_its_line_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "traced_tools")
    path, torn = tmp_path / "events.jsonl", tmp_path / "events.jsonl.torn"
    whole, cut = event_json(batch(1, 2)[0]), event_json(started(3, agent="x" * 200_000))[:150_000]
    for number, end in enumerate([whole, cut, "{", cut]):
        path.write_text(f"{event_json(started(conversation_id='c' * 100_000))}\n{end}")
        exporter = JsonLinesExporter(path)
        assert exporter.torn == (number > 0)
        exporter.export(batch(1, 4))
        exporter.close()
        expected = [1, 2, 4] if number == 0 else [1, 4]
        assert ids_in(path) == [started(each).id for each in expected]
    assert torn.read_text().splitlines() == [cut, "{", cut]
    assert stat.S_IMODE(torn.stat().st_mode) == 0o600
    assert (
        caplog.messages
        == [f"{path} ended with an incomplete line, as after a killed process; the line was moved to {torn.name}"] * 3
    )


def test_an_incomplete_line_of_another_process_is_moved_too(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    exporter = JsonLinesExporter(path)
    exporter.export(batch(1))
    with path.open("a") as other:
        other.write('{"torn')
    exporter.export(batch(1, 2))
    exporter.close()
    assert ids_in(path) == ids(batch(2))
    assert exporter.torn == 1


def test_a_file_with_only_an_incomplete_line_is_emptied_and_the_line_is_moved(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"\x00" * 100_000)  # as a crash of the system may leave it
    exported(path, batch(1))
    assert ids_in(path) == ids(batch(1))
    assert (tmp_path / "events.jsonl.torn").read_bytes() == b"\x00" * 100_000 + b"\n"


WRITER = """
import sys
from tests.events.made import batch
from traced_tools.events import JsonLinesExporter
exporter = JsonLinesExporter(sys.argv[1], max_bytes=5_000_000, fsync="never")
number, size = 1, 40
while True:
    print(number, flush=True)
    exporter.export(batch(size, number, agent="x" * 50_000))
    number += size
"""


@pytest.mark.slow
def test_a_killed_writer_loses_no_acknowledged_line_and_leaves_no_incomplete_one(tmp_path: Path) -> None:
    path, chance = tmp_path / "events.jsonl", random.Random(7)
    for _ in range(40):
        arguments = [sys.executable, "-c", WRITER, str(path)]
        with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "1\n"
            until = time.monotonic() + chance.uniform(0.0, 0.05)
            while time.monotonic() < until:
                pass
            writer.send_signal(signal.SIGKILL)
            counted = [1, *map(int, writer.stdout.read().split())][-1] - 1
        exported(path, batch(1, 1_000_000))  # as the next process does
        files = [*put_away(path), path]
        assert ids_in(*files)[:counted] == ids(batch(counted))
        assert set(Counter(ids_in(*files)).values()) == {1}
        for each in files:
            each.unlink()


# A full disk.


LIMITED = """
import resource, sys
from tests.events.made import batch
from traced_tools.events import JsonLinesExporter
from traced_tools.events.exporter import ExportFailed
exporter = JsonLinesExporter(sys.argv[1])
exporter.export(batch(10, agent="x" * 1000))
resource.setrlimit(resource.RLIMIT_FSIZE, (25_000, resource.RLIM_INFINITY))
for attempt in range(3):
    try:
        exporter.export(batch(40, 11, agent="x" * 1000))
    except ExportFailed as failed:
        print(failed.retryable, str(failed).rpartition(" ")[2])
exporter.export(batch(2, 51))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
exporter.export(batch(40, 11, agent="x" * 1000))
exporter.close()
"""


def test_a_batch_that_does_not_fit_on_the_disk_is_written_completely_by_a_later_attempt(tmp_path: Path) -> None:
    pytest.importorskip("resource")
    path = tmp_path / "events.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path)], cwd=ROOT, capture_output=True, text=True, timeout=10 * PATIENCE
    )
    assert done.stdout == "True (EFBIG)\n" * 3, done.stderr
    assert ids_in(path) == [*ids(batch(10)), *ids(batch(2, 51)), *ids(batch(40, 11))]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["events.jsonl"]
