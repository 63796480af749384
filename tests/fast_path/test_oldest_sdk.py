"""The tests of the fast path pass with the oldest OpenTelemetry SDK that the package allows.

`tests/judges/requirements-oldest.txt` pins it. Its environment is `.venv-oldest` in the repository, or that of the
Python that TRACED_TOOLS_OLDEST names.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.judges.programs import ROOT, environment, missing

PYTHON = Path(os.environ.get("TRACED_TOOLS_OLDEST") or ROOT / ".venv-oldest/bin/python")
PINS = ROOT / "tests/judges/requirements-oldest.txt"
TO_HAVE_IT = (
    "python3 -m venv .venv-oldest && .venv-oldest/bin/pip install -r tests/judges/requirements-oldest.txt, "
    "or TRACED_TOOLS_OLDEST=/path/to/its/python"
)
FOLDER = Path(__file__).parent


def test_the_pins_have_the_oldest_sdk_that_the_package_allows() -> None:
    allowed = re.search(r'"opentelemetry-sdk>=([\d.]+)"', (ROOT / "pyproject.toml").read_text("utf-8"))
    pinned = re.search(r"^opentelemetry-sdk==([\d.]+)$", PINS.read_text("utf-8"), re.MULTILINE)
    assert allowed and pinned and pinned[1] == f"{allowed[1]}.0"


@pytest.mark.slow
def test_the_fast_path_passes_its_tests_with_the_oldest_sdk() -> None:
    if not PYTHON.is_file():
        missing(f"the oldest SDK is not here: {TO_HAVE_IT}")
    tests = [str(path) for path in sorted(FOLDER.glob("test_*.py")) if path != Path(__file__)]
    done = subprocess.run(
        [str(PYTHON), "-m", "pytest", "-q", "--show-capture=no", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        env=environment({"PYTHONPATH": str(ROOT)}),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
