"""The agents of the pages `docs/coming-from` that other packages run, in an environment of their own.

The environment is `.venv-others` in the repository, or that of the Python that TRACED_TOOLS_OTHERS names.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.judges.programs import ROOT, missing
from tests.test_docs import weather_service
from traced_tools.testing import ReplayServer

pytestmark = pytest.mark.slow  # each test starts a process

PYTHON = Path(os.environ.get("TRACED_TOOLS_OTHERS") or ROOT / ".venv-others/bin/python")
BLOCK = re.compile(r"^```python (\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BLOCKS = [
    pytest.param(block.group(2), id=block.group(1))
    for page in sorted((ROOT / "docs" / "coming-from").glob("*.md"))
    for block in BLOCK.finditer(page.read_text())
]


def test_the_pages_have_an_agent_of_each_package() -> None:
    assert sorted(str(block.id) for block in BLOCKS) == ["langchain", "openai", "pydantic_ai"]


@pytest.mark.parametrize("program", BLOCKS)
def test_the_agent_of_the_other_package_answers_as_ours_does(program: str, tmp_path: Path) -> None:
    if not PYTHON.is_file():
        missing(
            "the other packages are not here: python3 -m venv .venv-others && .venv-others/bin/pip install -r "
            "tests/judges/requirements-others.txt, or TRACED_TOOLS_OTHERS=/path/to/its/python"
        )
    with ReplayServer(weather_service) as server:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "OPENAI_", "LANG"))}
        run = subprocess.run(
            [PYTHON, "-c", program],
            env={**kept, "OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "none"},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert run.returncode == 0, run.stderr
        assert len(server.requests) == 2
    assert run.stdout.strip() == "It is sunny."
