"""A run that pays, in a process that is killed or goes on: other processes never say that the call was not run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from traced_tools.audit.reading.reader import AuditReader

pytestmark = pytest.mark.slow


class Processes:
    """Processes of an agent that share a database and a trail."""

    def __init__(self, url: str, keeper: str, trail: Path) -> None:
        self._command = [sys.executable, "-m", "tests.approvals.paying", url, keeper, str(trail)]

    def begin(self, step: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen([*self._command, step], stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def run(self, step: str, given: str = "") -> subprocess.CompletedProcess[str]:
        command = [*self._command, step]
        return subprocess.run(command, input=given, text=True, capture_output=True, timeout=60, check=False)


def decisions(trail: Path) -> list[str]:
    return [record.fields["decision"] for record in AuditReader(trail).records() if record.kind == "decision"]


@pytest.mark.parametrize("is_killed", [True, False])
@pytest.mark.parametrize("keeper", ["store", "log"])
def test_another_process_says_that_the_call_may_have_run(
    url: str, tmp_path: Path, keeper: str, is_killed: bool
) -> None:
    processes = Processes(url, keeper, tmp_path / "audit.db")
    paused = processes.run("pause")
    assert paused.stdout, paused.stderr
    with processes.begin("resume") as paying:
        assert paying.stdin is not None
        assert paying.stdout is not None
        print(paused.stdout, end="", file=paying.stdin, flush=True)
        assert paying.stdout.readline() == "paying\n"
        if is_killed:
            paying.kill()
            paying.wait()
        said = processes.run("say")
        assert said.stdout.startswith("The outcome of the call is unknown, and it may have run"), said.stderr
        assert "ResumeError" in processes.run("resume", paused.stdout).stderr
        if not is_killed:
            print(file=paying.stdin, flush=True)
            assert paying.wait(60) == 0
    assert processes.run("say").stdout.startswith("The outcome" if is_killed else "paid 5")
    assert "denied" not in decisions(tmp_path / "audit.db")


@pytest.mark.parametrize("keeper", ["store", "log"])
def test_a_run_that_waits_when_another_process_goes_on_was_not_run(url: str, tmp_path: Path, keeper: str) -> None:
    processes = Processes(url, keeper, tmp_path / "audit.db")
    paused = processes.run("pause")
    for _ in range(2):
        said = processes.run("say")
        assert said.stdout.startswith("The call was not run"), said.stderr
    assert "ResumeError" in processes.run("resume", paused.stdout).stderr
    assert decisions(tmp_path / "audit.db") == ["pending", "denied"]
