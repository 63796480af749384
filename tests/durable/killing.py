"""Drives durable runs whose processes are killed, and prints what a ledger outside the engine says of each.

    python -m tests.durable.killing FOLDER URL SCENARIO MEMORY MODE CUTS ...

URL is that of a PostgreSQL, or `sqlite` for files in the folder. MODE is `drive`, `adrive` or `both`.

Each argument CUTS is a run: where its lives are killed, with commas between them. A number is a step of a life, from 1.
One that ends with `ms` is a time since the life began. At one that ends with `stop`, the life is stopped, and continued
when others have ended the run.
Lives after the last cut are not killed, and 0 kills none. Each life is a child of this process, which has imported all,
reads the log between two lives, and decides about the calls that wait.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from tests.durable.scenarios import (
    LOG_WRITES,
    SCENARIOS,
    Parts,
    Process,
    Scenario,
    decide_all,
    memory_of,
    results_in,
    written_by,
)
from tests.memory.conversations import assert_well_formed, shown
from traced_tools import AuditAdvisor, AuditTrail, ChatClient, Message
from traced_tools.approvals import PendingStore
from traced_tools.audit.reading.reader import AuditReader
from traced_tools.durable.records import Answered, CallBegan, CallEnded, Record, read_records
from traced_tools.errors import RunTaken
from traced_tools.memory.sql import SqlChatMemoryRepository
from traced_tools.testing import ScriptedChatModel

MOST_LIVES = 30
KILLED = (-signal.SIGKILL, -signal.SIGALRM)
"""How a life ends that was killed: at a step, or by the kernel's timer, which no code of the process sees."""


OVERTAKEN = 3
"""The exit status of a life that another one has overtaken."""


class KilledProcess(Process):
    """A life in a process of its own, and a ledger that is synced to the disk."""

    def __init__(self, ledger: Path, cut: str = "0") -> None:
        super().__init__(0 if cut.endswith("ms") else int(cut.removesuffix("stop")))
        self._ledger = ledger
        self.is_stopped = cut.endswith("stop")

    def note(self, event: str) -> None:
        with self._ledger.open("a") as file:
            print(event, file=file, flush=True)
            os.fsync(file.fileno())

    def read(self, agent: str, messages: Sequence[Message]) -> None:
        assert_well_formed(messages)
        if agent == "desk" and "ended with" not in self._ledger.read_text():
            self._ledger.with_suffix(".read").write_text(json.dumps(results_in(messages)))

    def end(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP if self.is_stopped else signal.SIGKILL)


class Killing:
    """Runs of one scenario, on one database."""

    def __init__(self, folder: Path, url: str, scenario: Scenario, memory: str) -> None:
        self._folder, self._scenario, self._memory = folder, scenario, memory
        is_file = url == "sqlite"
        self.store = PendingStore(folder / "runs.db" if is_file else url)
        self._conversations = SqlChatMemoryRepository(folder / "memory.db" if is_file else url)
        self._trail = folder / "audit.db"
        self._warm_up()

    def _warm_up(self) -> None:
        """Drive a run here, so that the lives find all modules imported and all statements compiled."""
        ledger = self._folder / "warm"
        while "ended with" not in (ledger.read_text() if ledger.exists() else ""):
            self._drive("warm", KilledProcess(ledger), "drive")
            decide_all(self.store, self._scenario)
        gc.collect()
        gc.freeze()

    def outcome(self, key: str, cuts: list[str], mode: str) -> dict[str, Any]:
        """Drive a run to its end through lives that are killed, and return what is known of it."""
        ledger, deaths, stopped = self._folder / key, 0, list[int]()
        ledger.touch()
        for _ in range(MOST_LIVES):
            cut = cuts.pop(0) if cuts else "0"
            child = os.fork()
            if child == 0:
                self._live(key, ledger, cut, mode)
            _, wait_status = os.waitpid(child, os.WUNTRACED)
            if os.WIFSTOPPED(wait_status):
                stopped.append(child)
                status = OVERTAKEN
            else:
                status = os.waitstatus_to_exitcode(wait_status)
            assert status in (0, OVERTAKEN, *KILLED), f"a life ended with {status}"
            deaths += status != 0
            with ledger.open("a") as file:
                print(f"recorded {sum(isinstance(record, Answered) for record in self.records(key))}", file=file)
            lines = ledger.read_text().splitlines()
            if any(line.startswith("ended with ") for line in lines):
                continued = [_continued(child) for child in stopped]
                lines = ledger.read_text().splitlines()
                return {**self._known(key), "ledger": lines, "deaths": deaths, "continued": continued}
            decide_all(self.store, self._scenario)
            if status == 0 and cut.isdecimal() and int(cut):  # a life that has paused leaves its cut to the next one
                steps = next(int(line.split()[1]) for line in reversed(lines) if line.startswith("steps "))
                cuts.insert(0, str(max(0, int(cut) - steps)))
        raise AssertionError("the run never ends")

    def _live(self, key: str, ledger: Path, cut: str, mode: str) -> None:
        """Drive the run in this process, and exit."""
        try:
            if cut.endswith("ms"):
                signal.setitimer(signal.ITIMER_REAL, float(cut.removesuffix("ms")) / 1000)
            self._drive(key, KilledProcess(ledger, cut), mode)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except RunTaken:
            os._exit(OVERTAKEN)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def _drive(self, key: str, process: KilledProcess, mode: str) -> None:
        store: Any = written_by(process, self.store)
        store.run_logs = written_by(process, self.store.run_logs, *LOG_WRITES)
        memory = memory_of(written_by(process, self._conversations, "commit"), self._memory)
        with AuditTrail(self._trail) as trail:
            # The thread of a trail may hold the lock of its file when the process is stopped, and stop the others too.
            audit = [] if process.is_stopped else [AuditAdvisor(trail)]
            parts = Parts(process, store, [*audit, *memory])
            client = self._scenario.client(parts)
            client.submit("Go.", key=key, conversation_id=None if self._memory == "none" else key)
            settings = self._scenario.settings
            drive = client.drive(key, **settings) if mode == "drive" else asyncio.run(client.adrive(key, **settings))
        process.note(f"steps {process.steps}")
        if drive.status != "waiting":
            process.note(f"ended with {drive.status} {drive.content} {drive.stop_reason}")

    def records(self, key: str) -> list[Record]:
        loaded = self.store.run_logs.load(key)
        return [] if loaded is None else read_records(loaded.records, key, ())

    def _known(self, key: str) -> dict[str, Any]:
        records = self.records(key)
        starts = [item.call_id for item in records if isinstance(item, CallBegan) and not item.repeatable]
        ends = [item.result.call_id for item in records if isinstance(item, CallEnded)]
        read = (self._folder / key).with_suffix(".read")
        return {
            "starts": starts,
            "ends": ends,
            "read": json.loads(read.read_text()) if read.exists() else {},
            "later": self._later(key),
        }

    def _later(self, key: str) -> list[str]:
        """Return what the model of a later run in the conversation is sent."""
        if self._memory == "none":
            return []
        model = ScriptedChatModel(["later"])
        client = ChatClient(model, name="desk", advisors=memory_of(self._conversations, self._memory))
        client.prompt("And now?", conversation_id=key).call()
        assert_well_formed(model.requests[0].messages)
        return shown(model.requests[0].messages)

    def audited(self) -> dict[str, dict[str, int]]:
        """Return how often the trail has each outcome of a call, by the key of the run."""
        outcomes: dict[str, Counter[str]] = {}
        for record in AuditReader(self._trail).records():
            fields = record.fields
            if record.kind == "outcome" and fields["agent"] == "desk":
                of_run = outcomes.setdefault(fields["attributes"]["run.key"], Counter())
                of_run[f"{fields['call_id']} {fields['outcome']}"] += 1
        return {key: dict(of_run) for key, of_run in outcomes.items()}


def _continued(child: int) -> int:
    """Let a process that is stopped go on, and return its exit status."""
    os.kill(child, signal.SIGCONT)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    folder, url, scenario, memory, mode, *runs = sys.argv[1:]
    killing = Killing(Path(folder), url, SCENARIOS[scenario], memory)
    prefix = Path(folder).name
    outcomes = {f"{prefix}-{index}": cuts.split(",") for index, cuts in enumerate(runs)}
    modes = cycle(("drive", "adrive") if mode == "both" else (mode,))
    known = {key: killing.outcome(key, cuts, next(modes)) for key, cuts in outcomes.items()}
    audited = killing.audited()
    for key, outcome in known.items():
        print(json.dumps({**outcome, "audited": audited.get(key, {})}))


if __name__ == "__main__":
    main()
