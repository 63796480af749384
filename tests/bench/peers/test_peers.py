from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.peers import __main__ as command
from tests.bench.peers import environments, report
from tests.bench.peers.driver import Cost, Measured, measure, slope
from tests.bench.peers.environments import EnvironmentFailed, python_of
from tests.bench.peers.peers import PEERS, Peer
from tests.bench.peers.workloads import LOOP, WORKLOADS, Workload

SCRIPTED = """
import json, sys
mode, factor = sys.argv[2], float(sys.argv[1])
print(json.dumps({"version": "1.2.3"}), flush=True)
for line in sys.stdin:
    case = json.loads(line)
    pass_ns = factor * {"untraced": 100_000, "traced": 300_000, "counted": 1}[mode]
    used = case["runs"] * (5_000_000 + case["size"] * pass_ns * (2 if case["case"] == "async" else 1))
    emitted = {name: case["runs"] * (7 + n * case["size"]) for n, name in enumerate(("events", "spans", "records"))}
    print(json.dumps({"cpu_ns": used, "wall_ns": 2 * used, **(emitted if mode == "counted" else {})}), flush=True)
"""
"""A worker whose runs cost 5 ms, and their passes 100 or 300 us times an argument: twice that with the async tool."""
BROKEN = "import sys; sys.exit('no such model')"
PAGE = Path(__file__).parents[3] / "docs" / "details" / "overhead.md"
INSTALLED_HERE = ("traced_tools", "httpx", "mcp_sdk", "fastmcp")
"""The peers whose workers run in the environment of the tests."""
REFERENCE, SLOWER, GONE = Peer("traced_tools", "ours"), Peer("slower", "theirs"), Peer("gone", "the vanished")


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


def here(peer: Peer, workload: Workload) -> list[str]:
    """What runs a peer's worker in this environment."""
    return [sys.executable, "-m", peer.module(workload)]


@pytest.fixture(scope="module")
def scripted() -> dict[Peer, Measured | str]:
    return measure(
        LOOP, {REFERENCE: python(SCRIPTED, "1"), SLOWER: python(SCRIPTED, "3"), GONE: python(BROKEN)}, rounds=2
    )


def test_the_table_shows_the_cost_of_a_pass_without_what_a_run_costs_once(
    scripted: dict[Peer, Measured | str],
) -> None:
    rows = [re.split(r"  +", line) for line in report.text(LOOP, scripted).splitlines()]
    assert rows[1:] == [
        [
            "ours",
            "1.2.3",
            *(f"{cost} ({cost})" for cost in (100, 200, 300, 600)),
            "1.00 / 1.00",
            "x 1.0",
            "1",
            "2",
            "0",
        ],
        [
            "theirs",
            "1.2.3",
            "300 (300)",
            "600 (600)",
            "900 (900)",
            "1,800 (1,800)",
            "3.00 / 3.00",
            "x 1.0",
            "1",
            "2",
            "0",
        ],
        ["the vanished", "not run: no such model"],
    ]


def test_every_row_of_the_markdown_begins_with_the_peer(scripted: dict[Peer, Measured | str]) -> None:
    header, rule, *rows = report.markdown(LOOP, scripted).splitlines()
    assert header.count("|") == rule.count("|") == len(report.LOOP_HEADER) + 1
    assert [row.split(" | ")[0] for row in rows] == ["| ours", "| theirs", "| the vanished"]


def test_the_data_has_both_clocks_and_both_slopes(scripted: dict[Peer, Measured | str]) -> None:
    data = {each["peer"]: each for each in report.as_data(LOOP, scripted)}
    costs = {(cost["mode"], cost["case"], cost["size"]): cost for cost in data["ours"]["costs"]}
    assert len(costs) == 8
    assert costs["traced", "async", "10-50"]["cpu"] == {"best": 600, "median": 600}
    assert costs["traced", "async", "1-10"]["wall"] == {"best": 1200, "median": 1200}
    assert data["the vanished"]["not_run"] == "no such model"


def test_without_the_reference_the_table_has_no_ratios() -> None:
    results = measure(LOOP, {SLOWER: python(SCRIPTED, "3")}, rounds=1)
    assert re.search(r"\(1,800\) +x 1\.0", report.text(LOOP, results))


def test_the_best_slope_is_between_the_fastest_runs_and_the_median_between_those_of_a_round() -> None:
    ten = [2_000.0, 1_000.0, 5_000.0]
    twenty = [14_000.0, 12_000.0, 11_000.0]  # the last round disturbed the run of ten passes
    assert slope(ten, twenty, 10) == Cost(best=1.0, median=1.1)


def test_a_cost_below_a_microsecond_is_a_bound_because_it_is_below_the_noise() -> None:
    results = measure(LOOP, {REFERENCE: python(SCRIPTED, "0.001")}, rounds=1)
    assert re.split(r"  +", report.text(LOOP, results).splitlines()[1])[2:6] == ["< 1 (< 1)"] * 4


def test_a_worker_that_ends_between_rounds_is_reported_with_its_last_words() -> None:
    ends = SCRIPTED.replace("    case =", "    sys.exit('out of memory')\n    case =")
    assert measure(LOOP, {GONE: python(ends, "1")}, rounds=1) == {GONE: "out of memory"}


def test_a_worker_inherits_no_keys_and_no_settings_of_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    tells = (
        "import os, sys; sys.exit(' '.join(name for name in os.environ if name.startswith(('O', 'PYTHONHASH', 'X'))))"
    )
    peer = Peer("curious", "curious", variables={"X": "1"})
    assert str(measure(LOOP, {peer: python(tells)}, rounds=1)[peer]).split() == ["PYTHONHASHSEED", "X"]


@pytest.mark.slow
def test_the_floor_emits_in_a_pass_what_traced_tools_emits() -> None:
    ours, floor = (peer for peer in PEERS if peer.name in ("traced_tools_events", "floor_events"))
    measured = measure(LOOP, {peer: here(peer, LOOP) for peer in (ours, floor)}, rounds=1)
    assert [result for result in measured.values() if isinstance(result, str)] == []
    data = report.as_data(LOOP, measured)
    assert data[0]["emitted"] == data[1]["emitted"]
    assert min(data[0]["emitted"].values()) > 0
    assert all(cost["cpu"]["best"] > 0 for cost in data[0]["costs"])


def test_a_worker_reaches_servers_of_this_machine_alone() -> None:
    connects = (
        "import socket; from tests.bench.peers.worker import Setup, serve\n"
        "serve(Setup('1', {}, turn_telemetry_off=lambda: socket.create_connection(('%s', 9))))"
    )
    peers = {Peer(address, address): python(connects % address) for address in ("127.0.0.1", "192.0.2.1")}
    refused, barred = measure(LOOP, peers, rounds=1).values()
    assert "Connection refused" in str(refused)
    assert "has no network" in str(barred)


def test_a_run_that_does_less_than_its_workload_is_an_error() -> None:
    idle = (
        "from tests.bench.peers.worker import Setup, serve\n"
        "serve(Setup('1', {'blocking': lambda passes: lambda: None}))"
    )
    assert "20 runs of size 1 did 0 of 20 units" in str(measure(LOOP, {GONE: python(idle)}, rounds=1)[GONE])


def test_a_figure_without_a_slope_has_all_that_a_run_costs() -> None:
    streams = Workload("stream", "a chunk", ("async",), (1, 5), "at once", units=10)
    results = measure(streams, {REFERENCE: python(SCRIPTED, "1"), SLOWER: python(SCRIPTED, "3")}, rounds=1)
    rows = [re.split(r"  +", line) for line in report.text(streams, results).splitlines()]
    assert rows == [
        ["peer", "version", "1 at once", "5 at once", "/ traced_tools"],
        ["ours", "1.2.3", "520 (520)", "120 (120)", "1.00 / 1.00"],
        ["theirs", "1.2.3", "560 (560)", "160 (160)", "1.08 / 1.33"],
    ]


def test_a_run_may_be_timed_by_the_clock_of_another_process() -> None:
    served = (
        "from itertools import count as numbers; from tests.bench.peers.worker import Run, Setup, count, serve\n"
        "clock = numbers(0, 20_000)\n"
        "serve(Setup('1', {'call': lambda size: Run(count, lambda: next(clock))}))"
    )
    calls = Workload("mcp", "a call", ("call",))
    measured = measure(calls, {REFERENCE: python(served)}, rounds=2)[REFERENCE]
    assert isinstance(measured, Measured)
    assert measured.costs["untraced", "call"][0].cpu == Cost(best=1.0, median=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_a_worker_does_what_its_workload_says(workload: Workload) -> None:
    less = replace(workload, sizes=workload.sizes[:2], repeats=1)
    peers = [peer for peer in PEERS if peer.name in INSTALLED_HERE and peer.has(workload)]
    measured = measure(less, {peer: here(peer, workload) for peer in peers}, rounds=1)
    assert [result for result in measured.values() if isinstance(result, str)] == []


def test_every_requirement_is_pinned_and_all_peers_have_the_same_sdk() -> None:
    folders = {environments.requirements_of(peer).parent.name: environments.requirements_of(peer) for peer in PEERS}
    versions = set()
    for name, path in folders.items():
        lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
        unpinned = [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)]
        assert unpinned == (["--editable .[mcp]"] if name == "traced_tools" else []), name
        versions |= {line for line in lines if line.startswith("opentelemetry-sdk==")}
    assert len(versions) == 1


def test_an_environment_is_made_again_only_if_its_requirements_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[tuple[str, ...]] = []

    def run(*given: str) -> None:
        commands.append(given)
        (tmp_path / "agent_framework").mkdir(exist_ok=True)

    monkeypatch.setattr(environments, "_run", run)
    peer = next(peer for peer in PEERS if peer.name == "agent_framework")
    assert python_of(peer, tmp_path) == python_of(peer, tmp_path) == tmp_path / "agent_framework" / "bin" / "python"
    assert len(commands) == 2  # venv and pip
    (tmp_path / "agent_framework" / "installed.txt").write_text("agent-framework-core==0.1\n")
    python_of(peer, tmp_path)
    assert len(commands) == 4


def test_if_no_environment_can_be_made_each_row_says_why_and_the_command_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(peer: Peer) -> Path:
        raise EnvironmentFailed("pip failed: no network")

    monkeypatch.setattr(command, "python_of", fail)
    assert command.main(["--json", "--only", "langchain", "--workload", "loop", "--workload", "policy"]) == 1
    (loop,) = json.loads(capsys.readouterr().out)["workloads"]
    assert loop == {
        "workload": "loop",
        "rounds": 20,
        "peers": [{"peer": "langchain, OpenLLMetry", "not_run": "pip failed: no network"}],
    }


def test_every_peer_has_a_workload_and_every_workload_has_the_reference_and_another_peer() -> None:
    peers_of = {workload: [peer for peer in PEERS if peer.has(workload)] for workload in WORKLOADS}
    assert {peer for peers in peers_of.values() for peer in peers} == set(PEERS)
    assert {peers[0].name for peers in peers_of.values()} == {REFERENCE.name}
    assert min(len(peers) for peers in peers_of.values()) > 1


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_the_page_has_a_table_of_each_workload_with_all_of_its_peers(workload: Workload) -> None:
    _, _, after = PAGE.read_text().partition(f"\n**{workload.name}**: {workload.title}")
    header, _, *rows = after.partition("\n|")[2].partition("\n\n")[0].splitlines()
    assert header == f" {' | '.join(report.header_of(workload))} |"
    assert [row.split(" | ")[0] for row in rows] == [f"| {peer.title}" for peer in PEERS if peer.has(workload)]
