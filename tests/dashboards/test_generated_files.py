"""The files in `dashboards/` are those that the generator writes."""

from __future__ import annotations

import tomllib

from dashboards.__main__ import FOLDER, files
from tests.judges.programs import ROOT


def test_the_committed_files_are_those_that_the_generator_writes() -> None:
    stale = [str(path.relative_to(ROOT)) for path, text in files() if not path.exists() or path.read_text() != text]
    assert not stale, "run `make dashboards`"


def test_no_file_is_left_from_a_board_or_rule_that_is_gone() -> None:
    generated = {path for path, _ in files()}
    folders = {path.parent for path in generated}
    assert {path for folder in folders for path in folder.glob("*.*")} == generated
    assert all(folder.is_relative_to(FOLDER) for folder in folders)


def test_the_sdk_of_grafana_is_pinned_because_a_range_would_select_an_older_release() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (pin,) = [each for each in project["optional-dependencies"]["dev"] if each.startswith("grafana-foundation-sdk")]
    assert pin.startswith("grafana-foundation-sdk==")
