"""The tests of `strands_cases.py`, and the agent of `docs/frameworks/strands.md`, in the environment of strands.

strands needs another `mcp` than this package. `tests/judges/requirements-strands.txt` pins what it needs. Its
environment is `.venv-strands` in the repository, or that of the Python that TRACED_TOOLS_STRANDS names.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.judges.programs import ROOT, environment, missing
from traced_tools.errors import ConfigurationError

PYTHON = Path(os.environ.get("TRACED_TOOLS_STRANDS") or ROOT / ".venv-strands/bin/python")
PAGE = ROOT / "docs" / "frameworks" / "strands.md"
BLOCK = re.compile(r"^```python strands\n(.*?)^```$", re.DOTALL | re.MULTILINE)
TO_HAVE_IT = (
    "python3 -m venv .venv-strands && .venv-strands/bin/pip install -r tests/judges/requirements-strands.txt, "
    "or TRACED_TOOLS_STRANDS=/path/to/its/python"
)


def run(*arguments: str) -> None:
    """Run Python in the environment of strands."""
    if not PYTHON.is_file():
        missing(f"strands is not here: {TO_HAVE_IT}")
    done = subprocess.run(
        [str(PYTHON), *arguments],
        cwd=ROOT,
        env=environment({"PYTHONPATH": str(ROOT)}),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.mark.slow
def test_agents_of_strands_pass_their_tests() -> None:
    run("-m", "pytest", "-q", "--show-capture=no", "tests/integrations/strands_cases.py")


@pytest.mark.slow
def test_the_code_on_the_page_runs() -> None:
    run("-W", "error", "-c", "\n".join(BLOCK.findall(PAGE.read_text("utf-8"))))


def test_a_missing_framework_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "strands.hooks", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'traced_tools\[strands\]'"):
        import traced_tools.integrations.strands  # noqa: F401  # its import is what is tested
