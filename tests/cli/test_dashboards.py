"""`traced-tools dashboards export`: the files are those of the repository, in a checkout and in a wheel."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.judges.programs import ROOT
from traced_tools.cli.app import app

RULES = {Path("rules") / path.name: path.read_bytes() for path in (ROOT / "dashboards/rules").glob("*.yaml")}


def boards(schema: str) -> dict[Path, bytes]:
    return {Path(path.name): path.read_bytes() for path in (ROOT / "dashboards" / schema).glob("*.json")}


def written(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.glob("**/*") if path.is_file()}


def test_export_writes_the_boards_and_the_rules_and_prints_their_paths(tmp_path: Path) -> None:
    run = CliRunner().invoke(app, ["dashboards", "export", "--dir", str(tmp_path / "new" / "folder")])
    assert run.exit_code == 0, run.stderr
    assert written(tmp_path / "new" / "folder") == boards("classic") | RULES
    assert len(RULES) == 2
    assert Path("tt-home.json") in boards("classic")
    printed = {Path(line).relative_to(tmp_path / "new" / "folder") for line in run.stdout.splitlines()}
    assert printed == {*boards("classic"), *RULES}


@pytest.mark.slow
def test_export_writes_the_other_schema_over_the_first(tmp_path: Path) -> None:
    for schema in ("classic", "v2"):
        command = ["dashboards", "export", "--dir", str(tmp_path), "--schema", schema]
        assert CliRunner().invoke(app, command).exit_code == 0
    assert written(tmp_path) == boards("v2") | RULES
    assert boards("v2") != boards("classic")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    run = CliRunner().invoke(app, ["dashboards", "export", "--dir", str(file)])
    assert run.exit_code == 2
    assert run.stderr.startswith("dashboards: ")
    assert f"{file}" in run.stderr
    assert "cannot be written" in run.stderr
    assert file.read_text() == "kept"


def test_an_unknown_schema_is_a_usage_error(tmp_path: Path) -> None:
    run = CliRunner(env={"COLUMNS": "120"}).invoke(
        app, ["dashboards", "export", "--dir", str(tmp_path), "--schema", "v1"]
    )
    assert run.exit_code == 2
    assert "'classic', 'v2'" in run.stderr


@pytest.mark.slow
def test_a_wheel_exports_the_same_files(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, ROOT]
    made = subprocess.run(build, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    (wheel,) = tmp_path.glob("traced_tools-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "site")
    assert not [name for name in names if not name.startswith("traced_tools")], "the generator is no part of the wheel"
    for schema in ("classic", "v2"):
        # In the wheel's folder, and isolated from the checkout's path, so that its own package is imported.
        code = (
            f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); import traced_tools.cli as cli; "
            f"assert cli.__file__.startswith({str(tmp_path)!r}); cli.main()"
        )
        target = tmp_path / schema
        command = [sys.executable, "-c", code, "dashboards", "export", "--dir", target, "--schema", schema]
        assert subprocess.run(command, cwd=tmp_path, check=False).returncode == 0
        assert written(target) == boards(schema) | RULES
