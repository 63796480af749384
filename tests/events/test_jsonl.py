"""The JSON Lines exporter, and the rotation of its files."""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given

from tests.events.files import exported, ids, ids_in, lines_of, put_away
from tests.events.made import HOSTILE, batch, one_of_each, started, texts
from traced_tools.errors import ConfigurationError
from traced_tools.events import ExportFailed, JsonLinesExporter
from traced_tools.events.exporters import event_file
from traced_tools.events.exporters.event_file import event_json

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


def test_fields_that_are_none_are_omitted(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    exported(path, [started(conversation_id=None)])
    assert "conversation_id" not in lines_of(path)[0]


@given(texts)
def test_hostile_text_stays_one_line_of_json_for_any_definition_of_a_line(text: str) -> None:
    for event in one_of_each(text):
        line = event_json(event)
        assert line.isascii()
        assert line.splitlines() == [line]
        read = type(event).model_validate_json(line)
        expected = text.encode(errors="replace").decode()
        assert getattr(read, "tool", expected) == expected


def test_a_new_file_is_private_to_its_owner_and_an_existing_one_keeps_its_mode(tmp_path: Path) -> None:
    new, old = tmp_path / "new.jsonl", tmp_path / "old.jsonl"
    old.touch(0o640)
    old.chmod(0o640)
    for path in (new, old):
        exported(path, batch(1))
    assert [stat.S_IMODE(path.stat().st_mode) for path in (new, old)] == [0o600, 0o640]


def test_an_existing_file_that_others_can_read_or_write_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "events.jsonl"
    path.touch()
    path.chmod(0o666)
    for _ in range(2):
        exported(path, batch(1))
    (text,) = caplog.messages
    assert f"{path} may be written by others (mode 666), who can change the events: chmod 600 it" in text


def test_lines_of_another_process_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    exported(path, batch(2))
    exported(path, batch(2, 3))
    assert ids_in(path) == ids(batch(4))


@pytest.mark.parametrize("fsync", ["batch", "never"])
def test_each_batch_is_synced_to_disk_unless_fsync_is_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: str
) -> None:
    path = tmp_path / "events.jsonl"
    exporter = JsonLinesExporter(path, fsync=fsync)  # type: ignore[arg-type]
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(path.stat().st_size))
    exporter.export(batch(1))
    exporter.export(batch(1, 2))
    exporter.close()
    sizes = [len(event_json(event)) + 1 for event in batch(2)]
    assert synced == ([sizes[0], sum(sizes)] if fsync == "batch" else [])


def test_a_batch_whose_fsync_fails_is_removed_from_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_file_that_a_batch_would_make_too_large_is_rotated_first(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    size = len(event_json(started())) + 1
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


def test_a_batch_is_never_split_between_files(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    exporter = JsonLinesExporter(path, max_bytes=1)
    exporter.export(batch(3))
    exporter.export(batch(2, 4))
    exporter.close()
    assert [ids_in(each) for each in (*put_away(path), path)] == [ids(batch(3)), ids(batch(2, 4))]


def test_a_file_is_rotated_when_its_first_event_is_old_enough_in_any_process(tmp_path: Path) -> None:
    path, now = tmp_path / "events.jsonl", datetime.now(UTC)
    exported(path, [started(1, time=now - timedelta(seconds=1000)), started(2, time=now)])
    exported(path, batch(1, 3), max_age=2000)
    assert put_away(path) == []
    exported(path, [started(4, time=now)], max_age=900)
    exported(path, [started(5, time=now)], max_age=900)
    assert [ids_in(each) for each in (*put_away(path), path)] == [ids(batch(3)), ids(batch(2, 4))]


def test_a_file_whose_first_line_has_no_time_is_not_rotated_by_age(tmp_path: Path) -> None:
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


def test_files_rotated_in_the_same_microsecond_have_distinct_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


# Arguments.


@pytest.mark.parametrize("what", ["folder", "missing", "device"])
def test_a_path_that_cannot_be_a_file_is_refused_by_the_constructor(tmp_path: Path, what: str) -> None:
    path = {"folder": tmp_path, "missing": tmp_path / "missing" / "events.jsonl", "device": Path("/dev/null")}[what]
    with pytest.raises(ConfigurationError, match="path must be a writable file"):
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
def test_invalid_options_are_refused_before_a_file_is_created(
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
