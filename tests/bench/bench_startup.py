"""What starting costs: imports and commands in fresh processes, beside what they cannot do without.

Each ratio compares with a process of the same round. The figure is processor time of the process, and the fastest of
the rounds counts. The package is compiled first, as an installer compiles it: where `PYTHONDONTWRITEBYTECODE` is set,
each process would otherwise compile all modules that have changed.
"""

from __future__ import annotations

import compileall
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import traced_tools
from tests.bench.report import Row, Section
from tests.bench.workload import add
from traced_tools import ChatClient, ToolCall
from traced_tools.audit import AuditAdvisor, AuditTrail
from traced_tools.testing import ScriptedChatModel

NAMES_TARGET = 1.6
VERSION_TARGET = 1.3
LIST_TARGET = 1.5
_API = "import opentelemetry.trace, opentelemetry.metrics, opentelemetry._logs, asyncio"
_MODEL = "from pydantic import BaseModel; type('Model', (BaseModel,), {'__annotations__': {'field': int}})"
_COMMAND = "from traced_tools.cli import main; import sys; sys.argv[1:] = {arguments!r}; main()"
_TYPER = "import typer; typer.main.get_command"
_LISTING = (
    f"{_TYPER}; import typer._adapters, sqlalchemy, sqlalchemy.dialects.sqlite, sqlite3, rich.console, rich.table"
)


def startup_section(rounds: int) -> Section:
    """Return what imports and commands cost."""
    assert compileall.compile_dir(*traced_tools.__path__, quiet=1)
    with TemporaryDirectory() as folder:
        store = Path(folder) / "audit.db"
        with AuditTrail(store) as trail:
            model = ScriptedChatModel([ToolCall("add", {"a": 1, "b": 2}), "It is 3."])
            ChatClient(model, tools=[add], advisors=[AuditAdvisor(trail)]).prompt("How much is it?").call()
        codes = {
            "python": "pass",
            "names": "from traced_tools import ChatClient, tool",
            "names floor": f"{_API}; {_MODEL}",
            "version": _COMMAND.format(arguments=["--version"]),
            "version floor": _TYPER,
            "list": _COMMAND.format(arguments=["audit", "list", "--store", str(store)]),
            "list floor": _LISTING,
        }
        times = _times(codes, rounds)
    return Section(
        "start-up, in a fresh interpreter",
        [
            Row("python -c pass", times["python"], "ms"),
            *_rows("import ChatClient, tool", "names", "pydantic, asyncio, OTel API", times, NAMES_TARGET),
            *_rows("traced-tools --version", "version", "typer", times, VERSION_TARGET),
            *_rows("traced-tools audit list", "list", "typer, SQLAlchemy, rich", times, LIST_TARGET),
        ],
    )


def _rows(label: str, name: str, floor: str, times: dict[str, float], at_most: float) -> list[Row]:
    ratio = times[name] / times[f"{name} floor"]
    return [Row(label, times[name], "ms"), Row(f"{label} / {floor}", ratio, "x", at_most=at_most, digits=2)]


def _times(codes: dict[str, str], rounds: int) -> dict[str, float]:
    """Return the least milliseconds of processor time of each program; the first round fills the file cache."""
    times = dict.fromkeys(codes, float("inf"))
    for turn in range(rounds + 1):
        for name, code in codes.items():
            taken = _processor_time([sys.executable, "-c", code])
            if turn:
                times[name] = min(times[name], taken)
    return times


def _processor_time(command: Sequence[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
