"""The program on the page about your own loop does what the page says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_docs import BLOCK, ROOT
from tests.waiting import PATIENCE


def code_below(heading: str) -> str:
    """Return the first block of code below a heading of the page."""
    _, found, below = (ROOT / "docs" / "own-loops.md").read_text().partition(f"\n{heading}\n")
    block = BLOCK.search(below)
    assert found
    assert block is not None
    return block.group(2)


@pytest.mark.parametrize(
    ("typed", "printed"),
    [
        ("y\n", "answered\napproved: paid 90 to Ana\n"),
        ("n\nToo much.\n", "answered\nrejected: The call was not run: Too much.\n"),
        ('what?\ne\n[]\ne\n{"to": "Ana", "amount": 9}\n', "answered\napproved: paid 9 to Ana\n"),
        ("", "awaiting_approval\n"),
    ],
    ids=["yes", "no", "edit", "no terminal"],
)
def test_a_person_in_a_terminal_decides(typed: str, printed: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(code_below("## In a terminal"))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)],
        input=typed,
        capture_output=True,
        text=True,
        timeout=PATIENCE * 2,
    )
    assert done.returncode == 0, done.stderr
    first, *_ = done.stdout.splitlines()
    assert first == 'pay {"amount": 90, "to": "Ana"}'
    assert done.stdout.endswith(f" {printed}")
