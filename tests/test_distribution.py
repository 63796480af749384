"""The wheel and the source distribution: what they hold, and that they work on each Python, without and with extras.

`.ci/run` installs the dependencies in `.venv-installed`, for each Python that the machine has. A test installs only the
wheel, in an environment of its own that sees them.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

import pytest

from docs.house import public_names
from tests.dashboards.node import PACKAGES
from tests.judges.programs import ROOT, missing
from tests.test_package import MODULES, docstrings, dotted, nodes_of
from traced_tools import __version__

pytestmark = pytest.mark.slow  # builds, installs and starts processes

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
INSTALLED = ROOT / ".venv-installed"
INTEGRATIONS = "traced_tools.integrations."
PUBLIC = public_names()
IMPORT_ALL = """
import importlib, json, sys

problems = {}
for package in json.loads(sys.argv[1]):
    module = importlib.import_module(package)
    for name in module.__all__:
        try:
            getattr(module, name)
        except Exception as error:
            problems[f"{package}.{name}"] = f"{type(error).__name__}: {error}"
print(json.dumps(problems))
"""
"""Prints why public names cannot be imported."""
INFERRED = 440
"""How many types pyright may infer: those of attributes that a method assigns without an annotation."""


class Distributions(NamedTuple):
    """The built files."""

    wheel: Path
    sdist: Path


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    return built(ROOT, tmp_path_factory.mktemp("dist"))


def built(source: Path, folder: Path) -> Distributions:
    """Build the distributions of a source tree."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(folder)]
    subprocess.run(command, cwd=source, capture_output=True, check=True, timeout=60)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return Distributions(wheel, sdist)


def files_of(wheel: Path) -> set[str]:
    return {*ZipFile(wheel).namelist()}


def test_the_wheel_has_the_package_its_types_and_the_dashboards_and_nothing_else(distributions: Distributions) -> None:
    files = files_of(distributions.wheel)
    tracked = subprocess.run(["git", "ls-files", "traced_tools"], cwd=ROOT, capture_output=True, text=True, check=True)
    dashboards = {
        f"traced_tools/cli/dashboards/files/{file.relative_to(ROOT / 'dashboards').as_posix()}"
        for pattern in ("classic/*.json", "v2/*.json", "rules/*.yaml")
        for file in (ROOT / "dashboards").glob(pattern)
    }
    package = {name for name in files if ".dist-info/" not in name}
    assert package == {*tracked.stdout.split(), *dashboards}
    assert {f"{name.replace('.', '/')}/__init__.pyi" for name in PUBLIC} | {"traced_tools/py.typed"} <= package
    assert len(dashboards) > 20


def test_no_message_of_the_package_names_a_file_that_only_the_repository_has() -> None:
    path = re.compile(r"(?<![\w/.:-])(deploy|docs|tests)/\w")
    named = [
        f"{dotted(module)}, line {node.lineno}: {node.value[:60]}"
        for module in MODULES
        for node in nodes_of(module)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and path.search(node.value)
        if id(node) not in docstrings(module)
    ]
    assert named == []


def test_the_source_distribution_builds_the_same_wheel(distributions: Distributions, tmp_path: Path) -> None:
    with tarfile.open(distributions.sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    assert (source / "tests" / "test_distribution.py").is_file()
    assert not [*source.glob(".venv*"), *source.glob("tests/npm/node_modules/*")]
    wheel, copy = distributions.wheel, built(source, tmp_path / "again").wheel
    assert files_of(wheel) == files_of(copy)
    assert all(ZipFile(wheel).read(name) == ZipFile(copy).read(name) for name in files_of(wheel))


def test_the_first_page_of_the_project_has_links_that_work_away_from_the_repository(
    distributions: Distributions,
) -> None:
    """No link of the description points to a file beside it: a package index has none."""
    with ZipFile(distributions.wheel) as wheel:
        (metadata,) = [name for name in wheel.namelist() if name.endswith("METADATA")]
        description = wheel.read(metadata).decode().partition("\n\n")[2]
    assert re.findall(r"\]\((?!https?:|#)[^)]+\)", description) == []


class Environment(NamedTuple):
    """An environment with the wheel and without the rest of the repository."""

    python: Path
    version: str
    has_extras: bool

    def run(self, *command: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, in its folder, and check its exit status."""
        own = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "OPENAI_", "PYTHON"))}
        done = subprocess.run(
            [self.python.with_name(command[0]), *command[1:]],
            cwd=self.python.parents[1],
            env={**own, "PYTHONWARNINGS": "error", "COLUMNS": "100"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == status, f"{done.stdout} {done.stderr}"
        return done


def installed(wheel: Path, version: str, folder: Path, *, has_extras: bool) -> Environment:
    """Install the wheel without a package index, so that the dependencies in its metadata must be there already."""
    kinds = ("all", "base") if has_extras else ("base",)
    dependencies = [INSTALLED / version / kind for kind in kinds]
    if not (INSTALLED / "pip").is_dir():
        missing("the dependencies are not here: .ci/run installs them in .venv-installed")
    if not dependencies[0].is_dir():
        pytest.skip(f"Python {version} is not on this machine")
    environment = Environment(folder / "bin" / "python", version, has_extras)
    subprocess.run([dependencies[-1] / "bin/python", "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    packages = Path(f"lib/python{version}/site-packages")
    paths = [str(dependency / packages) for dependency in dependencies]
    (folder / packages / "dependencies.pth").write_text("\n".join(paths) + "\n")
    pip = [INSTALLED / "pip/bin/python", "-m", "pip", "--python", environment.python, "install", "--no-index"]
    options = ["--disable-pip-version-check", f"{wheel}[all]" if has_extras else str(wheel)]
    done = subprocess.run([*pip, *options], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return environment


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def bare(distributions: Distributions, version: str, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return installed(distributions.wheel, version, tmp_path_factory.mktemp("bare"), has_extras=False)


@pytest.fixture(scope="module")
def full(distributions: Distributions, version: str, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return installed(distributions.wheel, version, tmp_path_factory.mktemp("full"), has_extras=True)


def import_problems(environment: Environment) -> dict[str, str]:
    """Return why public names cannot be imported, with warnings as errors."""
    done = environment.run("python", "-c", IMPORT_ALL, json.dumps([*PUBLIC]))
    problems: dict[str, str] = json.loads(done.stdout)
    return problems


def test_with_the_extras_every_public_name_can_be_imported(full: Environment) -> None:
    assert import_problems(full) == {}
    assert full.run("python", "-V").stdout.startswith(f"Python {full.version}.")


def test_without_extras_a_name_can_be_imported_or_says_which_extra_it_needs(bare: Environment) -> None:
    assert [text for text in import_problems(bare).values() if not re.search(r"traced_tools\[\w+\]", text)] == []


def test_the_command_line_answers_and_its_demo_runs(full: Environment) -> None:
    assert __version__ in full.run("traced-tools", "--version").stdout
    assert __version__ in full.run("python", "-m", "traced_tools", "--version").stdout
    done = full.run("traced-tools", "demo")
    assert "invoke_agent" in done.stdout + done.stderr
    full.run("traced-tools", "dashboards", "export", "--dir", "grafana")
    assert [*(full.python.parents[1] / "grafana").rglob("*.json")]


def test_without_extras_the_command_line_says_which_one_it_needs(bare: Environment) -> None:
    assert "pip install 'traced_tools[cli]'" in bare.run("traced-tools", "--version", status=2).stderr


@pytest.fixture(scope="module")
def completeness(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What pyright says of the types of the installed package."""
    pyright = PACKAGES / "pyright" / "index.js"
    if not pyright.is_file():
        missing("pyright is not here: npm ci --prefix tests/npm")
    folder = tmp_path_factory.mktemp("typed")
    environment = installed(distributions.wheel, "3.11", folder, has_extras=True)
    path = f"{environment.python.parent}{os.pathsep}{os.environ['PATH']}"
    command = ["node", pyright, "--verifytypes", "traced_tools", "--ignoreexternal", "--outputjson"]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=300
    )
    report: dict[str, Any] = json.loads(done.stdout)["typeCompleteness"]
    yield report


def unknown_types(completeness: dict[str, Any]) -> tuple[set[str], set[str]]:
    """Return the places whose types pyright infers, and those whose types it does not know.

    A type that contains such a type is incomplete as well, and is not counted again. The frameworks of integrations are
    not among the extras that are installed here; mypy knows them.
    """
    inferred, unknown = set(), set()
    symbols = [symbol for symbol in completeness["symbols"] if not symbol["name"].startswith(INTEGRATIONS)]
    for symbol in symbols:
        for diagnostic in () if symbol["isTypeKnown"] else symbol["diagnostics"]:
            first_line, _, rest = diagnostic["message"].partition("\n")
            if "is partially unknown" not in first_line:
                is_inferred = "Inferred type is" in rest or "Ambiguous base class override" in first_line
                start = diagnostic["range"]["start"]
                place = f"{symbol['name']}, {start['line'] + 1}:{start['character'] + 1}"
                (inferred if is_inferred else unknown).add(place)
    return inferred, unknown


def test_pyright_knows_or_infers_the_type_of_every_symbol(completeness: dict[str, Any]) -> None:
    assert completeness["pyTypedPath"]
    assert sum(completeness["exportedSymbolCounts"].values()) > 6_000
    inferred, unknown = unknown_types(completeness)
    assert unknown == set()
    assert len(inferred) <= INFERRED
