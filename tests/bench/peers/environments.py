"""The virtual environment of each peer, made on first use and reused while its requirements stay the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.bench.peers.peers import Peer

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / ".venv-peers"


class EnvironmentFailed(Exception):
    """The environment of a peer could not be made."""


def requirements_of(peer: Peer) -> Path:
    """Return the file that lists what the peer's environment holds."""
    return Path(__file__).parent / (peer.environment or peer.name) / "requirements.txt"


def python_of(peer: Peer, folder: Path = FOLDER) -> Path:
    """Return the Python of the peer's environment in `folder`; create the environment if it is missing or out of date.

    Raises:
        EnvironmentFailed: if pip could not install the requirements.
    """
    requirements = requirements_of(peer)
    environment = folder / requirements.parent.name
    python, installed = environment / "bin" / "python", environment / "installed.txt"
    if not installed.exists() or installed.read_text() != requirements.read_text():
        print(f"installing {requirements.relative_to(ROOT)} into {environment} ...", file=sys.stderr)
        _run(sys.executable, "-m", "venv", "--clear", str(environment))
        _run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(requirements))
        installed.write_text(requirements.read_text())
    return python


def _run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()[-1]
        raise EnvironmentFailed(f"{' '.join(command[2:4])} failed: {reason}")
