"""New files are for their owner, complete or absent, and made under names that nobody can guess."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from traced_tools.core.disk import create_private, replace_file

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes and links are POSIX's")


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    mask = os.umask(0)
    yield
    os.umask(mask)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("links", [0, 1, 2])
def test_a_missing_file_is_private_also_behind_links(tmp_path: Path, links: int) -> None:
    target = path = tmp_path / "target"
    for number in range(links):
        link = tmp_path / f"link-{number}"
        link.symlink_to(path.name)
        path = link
    create_private(path)
    assert (mode(target), target.read_bytes()) == (0o600, b"")
    assert path.is_symlink() == bool(links)


def test_an_existing_file_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("content")
    path.chmod(0o640)
    create_private(path)
    assert (mode(path), path.read_text()) == (0o640, "content")


def test_a_replaced_file_keeps_its_mode_and_a_new_one_is_private(tmp_path: Path) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    old.write_text("old")
    old.chmod(0o644)
    for path in (new, old):
        replace_file(path, b"content")
    assert [(mode(path), path.read_text()) for path in (new, old)] == [(0o600, "content"), (0o644, "content")]


def test_the_target_of_a_link_is_replaced(tmp_path: Path) -> None:
    link, target = tmp_path / "link", tmp_path / "target"
    link.symlink_to(target)
    replace_file(link, b"content")
    assert link.is_symlink()
    assert target.read_bytes() == b"content"


def test_a_draft_has_another_name_each_time_and_is_synced_before_it_replaces_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, drafts = tmp_path / "file", []
    path.write_text("old")

    def fsync(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            drafts.extend(each.name for each in tmp_path.iterdir() if each != path)
            assert path.read_text() == "old"

    monkeypatch.setattr(os, "fsync", fsync)
    for _ in range(2):
        replace_file(path, b"old")
    assert len({*drafts}) == len(drafts) == 2
    assert [*tmp_path.iterdir()] == [path]


def test_a_file_that_cannot_be_replaced_stays_and_leaves_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fsync(descriptor: int) -> None:
        raise OSError(5, "made up")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="made up"):
        replace_file(path, b"content")
    assert [*tmp_path.iterdir()] == [path]
    assert path.read_text() == "old"
