"""The spine works without the annexes: their folders are deleted in a copy, in which the tests of the spine run."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import traced_tools
from docs.house import ANNEXES, public_names

TESTS = Path(__file__).parent
PACKAGE = Path(traced_tools.__file__).parent
KIT = ("otel", "testing")
"""The annexes that tests use, to capture what is emitted."""
DELETED = {room.name for room in ANNEXES} - {*KIT}
OF_THE_WHOLE_HOUSE = (
    *("tests.test_package", "tests.test_docs", "tests.test_spine", "tests.test_typing", "tests.observe.test_reference"),
    *("tests.test_names", "tests.bench", "tests.cli", "tests.dashboards", "tests.deploy", "tests.judges"),
)
"""The tests that read each module, page or public name, or what stands beside the package."""
OF_COSTS = ("tests.test_growth",)
"""The tests that count what hundreds of iterations cost, which other tests run a few of."""
FOLDERS = ("advisors", "flow", "loop", "tools")
"""The folders whose tests run, beside those of no folder. They play whole runs, which pass every room of the spine; the
tests of schemas, observations and providers play parts of them, take long, and have no ties to annexes."""
LEAST = 3_500
OF_THE_TOP = public_names()["traced_tools"]


def names_in(path: Path) -> set[str]:
    """The dotted names of all that a module imports, and of the modules that these are in."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def needs_annex(name: str) -> bool:
    """Whether a dotted name is in a deleted room, or of what stands beside the package."""
    package, _, rest = name.partition(".")
    if package in ("dashboards", "deploy", "docs"):
        return True
    is_deleted = any(f"{rest}.".startswith(f"{room}.") for room in DELETED)
    defined_in = None if "." in rest else OF_THE_TOP.get(rest)
    return package == "traced_tools" and (is_deleted or (defined_in is not None and needs_annex(defined_in)))


def modules_of_the_spine() -> list[Path]:
    """The modules of tests/ that need no annex, and import none that does."""
    paths = {
        ".".join(("tests", *path.relative_to(TESTS).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in TESTS.rglob("*.py")
        if "node_modules" not in path.parts
    }
    imported = {module: names_in(path) for module, path in paths.items()}
    left = {
        module
        for module, names in imported.items()
        if not module.startswith((*OF_THE_WHOLE_HOUSE, *OF_COSTS)) and not any(map(needs_annex, names))
    }
    while gone := {module for module in left if any(name in paths and name not in left for name in imported[module])}:
        left -= gone
    runs = re.compile(rf"tests\.(({'|'.join(FOLDERS)})\.)?test_\w+")
    return [paths[module] for module in sorted(left) if ".test_" not in module or runs.fullmatch(module)]


@pytest.mark.slow
def test_the_spine_passes_its_tests_without_the_annexes(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "traced_tools", ignore=shutil.ignore_patterns("__pycache__"))
    for room in DELETED:
        shutil.rmtree(tmp_path.joinpath("traced_tools", *room.split(".")), ignore_errors=True)  # a room may be in one
    for path in modules_of_the_spine():
        copy = tmp_path / "tests" / path.relative_to(TESTS)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    shutil.copy(TESTS.parent / "pyproject.toml", tmp_path)
    shutil.copytree(TESTS.parent / "docs", tmp_path / "docs")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "auto", "-m", "not slow"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=1_200,
    )
    passed = re.search(r"(\d+) passed", done.stdout)
    assert done.returncode == 0, done.stdout[-5_000:]
    assert passed is not None and int(passed[1]) >= LEAST, done.stdout[-500:]
