"""The tests of docs/recipes/pytest.md pass, and fail without the policy that they are about."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.recipes.page import block

pytestmark = pytest.mark.slow  # each test starts a process


def pytest_output(folder: Path, agent: str) -> str:
    """Run the page's tests of an agent, in a folder without this project's settings, and return what pytest prints."""
    (folder / "support.py").write_text(agent)
    (folder / "test_support.py").write_text(block("pytest.md", "test"))
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "test_support.py"]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "PYTEST_"))}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120).stdout


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    assert "6 passed" in pytest_output(tmp_path, block("pytest.md", "support"))


def test_the_tests_of_the_page_show_that_the_policy_is_gone(tmp_path: Path) -> None:
    agent = block("pytest.md", "support").replace("advisors=[PolicyAdvisor(POLICY)], ", "")
    assert "3 failed, 3 passed" in pytest_output(tmp_path, agent)
