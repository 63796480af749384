"""What is measured: the loop of every peer, and the features that some peers have as well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product


@dataclass(frozen=True)
class Workload:
    """A workload of the benchmark. A peer has it if its folder has a worker of that name.

    Args:
        name: what selects it.
        title: what a figure of its table is.
        cases: what a worker measures in turn.
        sizes: how much a run does.
        size_name: what the sizes count, such as passes.
        modes: the telemetry of the workers, which a worker turns on.
        is_slope: whether a figure is the slope between a size and the next one, so that what a run costs once does not
            count.
        units: how many units there are in a run of size 1.
        repeats: how many runs of size 1 a measurement has; longer runs are repeated less.
        rounds: how often each peer is measured, if the command doesn't say.
    """

    name: str
    title: str
    cases: Sequence[str]
    sizes: Sequence[int] = (1,)
    size_name: str = ""
    modes: Sequence[str] = ("untraced",)
    is_slope: bool = False
    units: int = 1
    repeats: int = 20
    rounds: int = 20

    @property
    def steps(self) -> list[tuple[int, ...]]:
        """What the figures of a case belong to: each size, or each size and the next one."""
        return list(pairwise(self.sizes)) if self.is_slope else [(size,) for size in self.sizes]

    @property
    def columns(self) -> list[tuple[str, str]]:
        """Each mode with each case."""
        return list(product(self.modes, self.cases))

    def runs(self, size: int) -> int:
        """Return how many runs of a size a measurement has."""
        return max(1, self.repeats // size)


CHUNKS = 200
"""The chunks of a streamed answer."""
LOOP = Workload(
    "loop",
    "a pass of the loop",
    ("blocking", "async"),
    (1, 10, 50),
    "passes",
    ("untraced", "traced"),
    is_slope=True,
)
WORKLOADS = (
    LOOP,
    Workload(
        "memory",
        "a pass with a memory in SQLite inside the loop",
        ("blocking",),
        (10, 50, 150),
        "passes",
        is_slope=True,
        rounds=10,
    ),
    Workload(
        "capture",
        "a pass with content on spans",
        ("async",),
        (10, 50, 150),
        "passes",
        ("traced",),
        is_slope=True,
        rounds=10,
    ),
    Workload(
        "stream",
        "a chunk of streams over HTTP that are read at once",
        ("async",),
        (1, 50, 500),
        "at once",
        units=CHUNKS,
        repeats=10,
        rounds=3,
    ),
    Workload("mcp", "a call over MCP", ("client, stdio", "client, HTTP", "server, stdio", "server, HTTP"), (20,)),
    Workload("policy", "a decision of a policy", ("1 rule", "10,000 rules"), (20,), rounds=10),
    Workload("approval", "a run that pauses in SQLite for an approval and resumes", ("blocking",), repeats=5),
    Workload(
        "durable",
        "a pass of a durable run in SQLite: three records, or as many steps of the engine",
        ("blocking",),
        (1, 10, 100),
        "passes",
        is_slope=True,
        rounds=10,
    ),
    Workload("startup", "a process that imports what an agent needs", ("import",), repeats=1, rounds=10),
)
