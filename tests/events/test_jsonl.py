"""Events in a file, one per line, whatever becomes of who writes it, of the disk and of the file."""

from __future__ import annotations

import json
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
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given

from tests.events.made import HOSTILE, batch, one_of_each, started, texts
from tests.support import PATIENCE
from traced_tools.errors import ConfigurationError
from traced_tools.events import Event, ExportFailed, JsonLinesExporter
from traced_tools.events.exporters import event_file
from traced_tools.events.exporters.event_file import json_of

ROOT = Path(__file__).parents[2]


def lines_of(*paths: Path) -> list[dict[str, object]]:
    """What the lines of files say; every one of them is whole."""
    found = []
    for path in paths:
        data = path.read_bytes()
        assert data == b"" or data.endswith(b"\n"), f"{path.name} has a torn end"
        found += [json.loads(line) for line in data.splitlines()]
    return found


def ids(events: Sequence[Event]) -> list[object]:
    return [event.id for event in events]


def ids_in(*paths: Path) -> list[object]:
    return [line["id"] for line in lines_of(*paths)]


def exported(path: Path, events: Sequence[Event], **options: object) -> None:
    exporter = JsonLinesExporter(path, **options)  # type: ignore[arg-type]
    exporter.export(events)
    exporter.close()


def put_away(path: Path) -> list[Path]:
    return sorted(each for each in path.parent.iterdir() if each.name.startswith(f"{path.stem}-"))


# Lines.


def test_each_event_is_one_line_that_can_be_read_back(tmp_path: Path) -> None:
    path, events = tmp_path / "events.jsonl", one_of_each()
    exporter = JsonLinesExporter(path)
    exporter.export(events[:4])
    exporter.export(events[4:])
    exporter.flush()
    exporter.close()
    lines = path.read_text("ascii").splitlines()
    read = [type(event).model_validate_json(line) for event, line in zip(events, lines, strict=True)]
    assert [event.model_dump() for event in read] == [{**event.model_dump()} for event in events]


def test_what_is_none_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    exported(path, [started(conversation_id=None)])
    assert "conversation_id" not in lines_of(path)[0]


@given(texts)
def test_hostile_text_stays_one_line_of_json_by_any_readers_idea_of_a_line(text: str) -> None:
    for event in one_of_each(text):
        line = json_of(event)
        assert line.isascii()
        assert line.splitlines() == [line]
        read = type(event).model_validate_json(line)
        expected = text.encode(errors="replace").decode()
        assert getattr(read, "tool", expected) == expected


def test_a_file_that_is_made_is_its_owners_alone_and_one_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    new, old = tmp_path / "new.jsonl", tmp_path / "old.jsonl"
    old.touch(0o640)
    old.chmod(0o640)
    for path in (new, old):
        exported(path, batch(1))
    assert [stat.S_IMODE(path.stat().st_mode) for path in (new, old)] == [0o600, 0o640]


def test_what_another_process_wrote_before_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    exported(path, batch(2))
    exported(path, batch(2, 3))
    assert ids_in(path) == ids(batch(4))


@pytest.mark.parametrize("fsync", ["batch", "never"])
def test_each_batch_waits_for_the_disk_unless_it_never_shall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: str
) -> None:
    path = tmp_path / "events.jsonl"
    exporter = JsonLinesExporter(path, fsync=fsync)  # type: ignore[arg-type]
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(path.stat().st_size))
    exporter.export(batch(1))
    exporter.export(batch(1, 2))
    exporter.close()
    sizes = [len(json_of(event)) + 1 for event in batch(2)]
    assert synced == ([sizes[0], sum(sizes)] if fsync == "batch" else [])


def test_a_batch_that_does_not_reach_the_disk_is_not_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events.jsonl"
    exporter = JsonLinesExporter(path)
    exporter.export(batch(1))

    def fail(number: int) -> None:
        raise OSError(5, "made up")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(ExportFailed, match="EIO") as raised:
            exporter.export(batch(2, 2))
    assert raised.value.retryable
    assert ids_in(path) == ids(batch(1))
    exporter.export(batch(2, 2))
    exporter.close()
    assert ids_in(path) == ids(batch(3))


# Rotation.


def test_a_file_that_a_batch_would_make_too_large_is_put_away_first(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    size = len(json_of(started())) + 1
    exporter = JsonLinesExporter(path, max_bytes=3 * size)
    for number in range(1, 8):
        exporter.export(batch(1, number))
    exporter.close()
    assert [ids_in(each) for each in (*put_away(path), path)] == [
        ids(batch(3)),
        ids(batch(3, 4)),
        ids(batch(1, 7)),
    ]
    assert all(stat.S_IMODE(each.stat().st_mode) == 0o600 for each in tmp_path.iterdir())


def test_a_batch_is_never_divided(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    exporter = JsonLinesExporter(path, max_bytes=1)
    exporter.export(batch(3))
    exporter.export(batch(2, 4))
    exporter.close()
    assert [ids_in(each) for each in (*put_away(path), path)] == [ids(batch(3)), ids(batch(2, 4))]


def test_a_file_is_put_away_when_its_first_event_is_old_enough_whoever_wrote_it(tmp_path: Path) -> None:
    path, now = tmp_path / "events.jsonl", datetime.now(UTC)
    exported(path, [started(1, time=now - timedelta(seconds=1000)), started(2, time=now)])
    exported(path, batch(1, 3), max_age=2000)
    assert put_away(path) == []
    exported(path, [started(4, time=now)], max_age=900)
    exported(path, [started(5, time=now)], max_age=900)
    assert [ids_in(each) for each in (*put_away(path), path)] == [ids(batch(3)), ids(batch(2, 4))]


def test_a_file_whose_first_line_tells_no_time_is_not_too_old(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"time":"never"}\n')
    exported(path, batch(1), max_age=0.001)
    assert put_away(path) == []


def test_the_newest_full_files_are_kept_and_nothing_else_is_touched(tmp_path: Path) -> None:
    path, others = tmp_path / "events.jsonl", ("events-2.jsonl", "events-20250131T235959.000000Z.jsonl.gz", "x.jsonl")
    for name in others:
        (tmp_path / name).touch()
    exporter = JsonLinesExporter(path, max_bytes=1, keep=2)
    for number in range(1, 7):
        exporter.export(batch(1, number))
    exporter.close()
    full = sorted({each.name for each in tmp_path.iterdir()} - {path.name, *others})
    assert [ids_in(tmp_path / name) for name in full] == [ids(batch(1, 4)), ids(batch(1, 5))]
    assert all((tmp_path / name).exists() for name in others)


def test_full_files_of_one_microsecond_have_names_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return datetime(2025, 1, 31, 23, 59, 59, 999999, tzinfo=UTC)

    path = tmp_path / "events.jsonl"
    monkeypatch.setattr(event_file, "datetime", Clock)
    exporter = JsonLinesExporter(path, max_bytes=1)
    for number in range(1, 4):
        exporter.export(batch(1, number))
    exporter.close()
    assert [each.name for each in put_away(path)] == [
        "events-20250131T235959.999999Z.jsonl",
        "events-20250201T000000.000000Z.jsonl",
    ]
    assert ids_in(*put_away(path), path) == ids(batch(3))


# What others do to the file.


@pytest.mark.parametrize("what", ["rename", "unlink"])
def test_a_file_that_was_renamed_or_removed_is_made_anew(tmp_path: Path, what: str) -> None:
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


def test_a_file_that_is_copied_and_cut_goes_on_at_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    exporter = JsonLinesExporter(path)
    exporter.export(batch(3))
    os.truncate(path, 0)
    exporter.export(batch(1, 4))
    exporter.close()
    assert ids_in(path) == ids(batch(1, 4))


def test_through_a_link_the_file_itself_is_put_away_and_a_change_of_folder_changes_nothing(
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


def test_several_processes_and_threads_append_whole_lines_and_put_files_away_together(tmp_path: Path) -> None:
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
def test_a_forked_child_has_a_lock_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    exporter = JsonLinesExporter(path)
    exporter.export(batch(1))
    code = f"""
import os
from tests.events.made import batch
from traced_tools.events import JsonLinesExporter
exporter = JsonLinesExporter({str(path)!r})
before = exporter._file._file.fileno()
child = os.fork()
with exporter._file._locked():
    if child == 0:
        os._exit(3)  # it could take the lock while its parent has it
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


def test_a_torn_last_line_is_set_aside_and_a_whole_one_is_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "traced_tools")
    path, torn = tmp_path / "events.jsonl", tmp_path / "events.jsonl.torn"
    whole, cut = json_of(batch(1, 2)[0]), json_of(started(3, agent="x" * 200_000))[:150_000]
    for number, end in enumerate([whole, cut, "{", cut]):
        path.write_text(f"{json_of(started(conversation_id='c' * 100_000))}\n{end}")
        exporter = JsonLinesExporter(path)
        assert exporter.torn == (number > 0)
        exporter.export(batch(1, 4))
        exporter.close()
        expected = [1, 2, 4] if number == 0 else [1, 4]
        assert ids_in(path) == [started(each).id for each in expected]
    assert torn.read_text().splitlines() == [cut, "{", cut]
    assert stat.S_IMODE(torn.stat().st_mode) == 0o600
    assert (
        caplog.messages == [f"{path} ended with a torn line, as when a process is killed; it is in {torn.name} now"] * 3
    )


def test_a_line_that_another_process_tore_meanwhile_is_set_aside_too(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    exporter = JsonLinesExporter(path)
    exporter.export(batch(1))
    with path.open("a") as other:
        other.write('{"torn')
    exporter.export(batch(1, 2))
    exporter.close()
    assert ids_in(path) == ids(batch(2))
    assert exporter.torn == 1


def test_a_file_that_is_one_torn_line_is_emptied_and_its_line_set_aside(tmp_path: Path) -> None:
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
def test_a_writer_that_is_killed_at_any_moment_loses_no_line_it_has_counted_and_tears_none(tmp_path: Path) -> None:
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


def test_a_batch_that_does_not_fit_on_the_disk_leaves_no_part_and_comes_whole_later(tmp_path: Path) -> None:
    pytest.importorskip("resource")
    path = tmp_path / "events.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path)], cwd=ROOT, capture_output=True, text=True, timeout=10 * PATIENCE
    )
    assert done.stdout == "True (EFBIG)\n" * 3, done.stderr
    assert ids_in(path) == [*ids(batch(10)), *ids(batch(2, 51)), *ids(batch(40, 11))]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["events.jsonl"]


# Arguments.


@pytest.mark.parametrize("what", ["folder", "missing", "device"])
def test_a_path_that_can_be_no_file_is_refused_at_once(tmp_path: Path, what: str) -> None:
    path = {"folder": tmp_path, "missing": tmp_path / "missing" / "events.jsonl", "device": Path("/dev/null")}[what]
    with pytest.raises(ConfigurationError, match="path must be a file that can be written"):
        JsonLinesExporter(path)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max_bytes": 0}, ValueError),
        ({"max_bytes": 1.5}, TypeError),
        ({"max_age": 0}, ValueError),
        ({"max_bytes": 1, "keep": 0}, ValueError),
        ({"keep": 3}, ConfigurationError),
        ({"fsync": "always"}, ConfigurationError),
    ],
)
def test_options_that_cannot_work_are_refused_before_a_file_is_made(
    tmp_path: Path, options: dict[str, object], error: type[Exception]
) -> None:
    path = tmp_path / "events.jsonl"
    with pytest.raises(error, match=r"max_bytes|max_age|keep|fsync"):
        JsonLinesExporter(path, **options)  # type: ignore[arg-type]
    assert not path.exists()


def test_an_error_quotes_nothing_of_the_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = JsonLinesExporter(tmp_path / "events.jsonl")
    (tmp_path / "events.jsonl").unlink()
    (tmp_path / "events.jsonl").mkdir()
    with pytest.raises(ExportFailed) as raised:
        exporter.export([started(tool=HOSTILE, agent="secret")])
    exporter.close()
    assert "secret" not in f"{raised.value!r}{raised.value.__context__!r}{raised.value.__cause__!r}"
