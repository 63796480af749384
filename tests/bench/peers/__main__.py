"""Measures the peers and prints a table for each workload.

    python -m tests.bench.peers [--workload NAME] [--only NAME] [--rounds N] [--json | --markdown]

The tables show microseconds of CPU time: first the best of all rounds, then the median in parentheses. The clock is
that of the process, so that a tool in another thread counts and other programs don't. For served tools it is the clock
of the server's process, and for imports that of the process that imports.

In the table of the loop, a figure is for a pass in runs of 1 to 10 passes. The column *in long runs* is the cost of a
traced pass with the async tool in runs of 10 to 50 passes, divided by that cost in runs of 1 to 10.
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
from tests.bench.peers.workloads import WORKLOADS, Workload


def main(argv: list[str] | None = None) -> int:
    """Measure, print, and return the exit status: 1 if a workload could not be measured of any peer."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers", description=(__doc__ or "").splitlines()[0])
    names, peers = [workload.name for workload in WORKLOADS], [peer.name for peer in PEERS]
    parser.add_argument("--workload", action="append", choices=names, help="measure it; repeat it for several")
    parser.add_argument("--only", action="append", choices=peers, help="measure this peer; repeat it for several")
    parser.add_argument("--rounds", type=int, help="how often each peer is measured (default: 3 to 20, by workload)")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="all figures as data instead of tables")
    output.add_argument("--markdown", action="store_true", help="the tables for the documentation")
    arguments = parser.parse_args(argv)
    data, status = [], 0
    if not arguments.json:
        print(f"{machine()}; microseconds of CPU time: best (median)")
    for workload in WORKLOADS:
        selected = [peer for peer in PEERS if peer.has(workload) and peer.name in (arguments.only or peers)]
        if workload.name not in (arguments.workload or names) or not selected:
            continue
        rounds = arguments.rounds or workload.rounds
        results = measure_peers(workload, selected, rounds)
        if not any(isinstance(result, Measured) for result in results.values()):
            status = 1
        if arguments.json:
            data.append({"workload": workload.name, "rounds": rounds, "peers": report.as_data(workload, results)})
        else:
            table = report.markdown if arguments.markdown else report.text
            name = f"**{workload.name}**" if arguments.markdown else workload.name
            print(f"\n{name}: {workload.title}; {rounds} rounds\n\n{table(workload, results)}", flush=True)
    if arguments.json:
        print(json.dumps({"machine": machine(), "workloads": data}, indent=1))
    return status


def measure_peers(workload: Workload, peers: list[Peer], rounds: int) -> report.Results:
    """Return what was measured of the peers, in their order, or why that was impossible."""
    commands: dict[Peer, list[str]] = {}
    results: report.Results = {}
    for peer in peers:
        try:
            commands[peer] = [str(python_of(peer)), "-m", peer.module(workload)]
        except EnvironmentFailed as failed:
            results[peer] = str(failed)
    results |= measure(workload, commands, rounds)
    return {peer: results[peer] for peer in peers}


def machine() -> str:
    """Return what the figures depend on."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = models[0] if models else platform.machine()
    return f"{processor}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"


if __name__ == "__main__":
    sys.exit(main())
