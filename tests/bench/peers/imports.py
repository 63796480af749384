"""Runs the imports of a peer, each time in a new process."""

from __future__ import annotations

import resource
import subprocess
import sys

from tests.bench.peers.worker import Run, Setup, count, serve


def serve_imports(version: str, statement: str) -> None:
    """Answer the driver's requests with what the statement costs in a new process."""

    def run() -> None:
        subprocess.run([sys.executable, "-c", statement], check=True)
        count()

    serve(Setup(version, {"import": lambda _: Run(run, _cpu_ns_of_children)}))


def _cpu_ns_of_children() -> int:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return round((used.ru_utime + used.ru_stime) * 1e9)
