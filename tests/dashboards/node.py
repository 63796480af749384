"""Programs of Node. Their packages are pinned in `tests/npm`, and `make test` installs them if npm is here."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.judges.programs import ROOT, missing, program

NPM = ROOT / "tests/npm"
PACKAGES = NPM / "node_modules"


def run_node(
    script: Path, *arguments: str | Path, needs: str, standard_input: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a script that needs a package of `tests/npm`, and return how it ended and what it printed."""
    node = program("node", "install Node 20.15 or newer")
    if not (PACKAGES / needs).is_dir():
        missing(f"{needs} is not here: npm ci --prefix tests/npm")
    command = [node, script, *arguments]
    return subprocess.run(command, input=standard_input, capture_output=True, text=True, timeout=120, check=False)
