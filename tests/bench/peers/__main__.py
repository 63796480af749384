"""Measures the peers and prints a table.

    python -m tests.bench.peers [--only NAME] [--rounds N] [--json | --markdown]

The table shows microseconds of CPU time a pass, in runs of 1 to 10 passes: first the best of all rounds, then the
median in parentheses. The clock is that of the process, so that a tool in another thread counts and other programs
don't. The column *in long runs* is the cost of a traced pass with the async tool in runs of 10 to 50 passes, divided by
that cost in runs of 1 to 10.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path

from tests.bench.peers import report
from tests.bench.peers.driver import Measured, measure
from tests.bench.peers.environments import EnvironmentFailed, python_of
from tests.bench.peers.peers import PEERS, Peer


def main(argv: list[str] | None = None) -> int:
    """Measure, print, and return the exit status: 1 if no peer could be measured."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers", description=(__doc__ or "").splitlines()[0])
    names = [peer.name for peer in PEERS]
    parser.add_argument("--only", action="append", choices=names, help="measure this peer; repeat it for several")
    parser.add_argument("--rounds", type=int, default=20, help="how often each peer is measured (default: 20)")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="all figures as data instead of a table")
    output.add_argument("--markdown", action="store_true", help="the table for the documentation")
    arguments = parser.parse_args(argv)
    peers = [peer for peer in PEERS if arguments.only is None or peer.name in arguments.only]
    commands: dict[Peer, list[str]] = {}
    results: report.Results = {}
    for peer in peers:
        try:
            commands[peer] = [str(python_of(peer)), "-m", peer.module]
        except EnvironmentFailed as failed:
            results[peer] = str(failed)
    results |= measure(commands, arguments.rounds)
    results = {peer: results[peer] for peer in peers}
    if arguments.json:
        print(json.dumps({"machine": machine(), "peers": report.as_data(results)}, indent=1))
    else:
        print(f"{machine()}; {arguments.rounds} rounds; microseconds of CPU time a pass: best (median)\n")
        print(report.markdown(results) if arguments.markdown else report.text(results))
    return 0 if any(isinstance(result, Measured) for result in results.values()) else 1


def machine() -> str:
    """Return what the figures depend on."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = models[0] if models else platform.machine()
    return f"{processor}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"


if __name__ == "__main__":
    sys.exit(main())
