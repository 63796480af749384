"""What the boards and the alert rules hold agents to: objectives, and the limits of alerts.

Change a number here, or in `traced_tools/cli/dashboards/limits.py`, and run `make dashboards`.
Thresholds on boards, recording rules and alerts follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dashboards.conventions import MODEL_CALL_DURATION
from dashboards.outcomes import CANCELLED, FAILED
from dashboards.promql import Selection, Series, differs, has, none_of, one_of
from traced_tools.cli.dashboards.limits import DEFAULTS
from traced_tools.observe import names

_ALL: Final = Selection()
NOT_CANCELLED: Final = differs(names.ERROR_TYPE, names.CANCELLED)
"""Matches runs and model calls but those that a user cancelled, who says nothing of the agent or the model."""


@dataclass(frozen=True)
class BurnRate:
    """How fast the error budget of 30 days may burn before an alert fires.

    Attributes:
        factor: how many times faster than a rate that uses up the budget in 30 days.
        long: the window that shows that it matters.
        short: the window that shows that it still goes on.
    """

    factor: float
    long: str
    short: str


FAST_BURN: Final = (BurnRate(14.4, "1h", "5m"), BurnRate(6, "6h", "30m"))
SLOW_BURN: Final = (BurnRate(3, "1d", "2h"), BurnRate(1, "3d", "6h"))


@dataclass(frozen=True)
class Objective:
    """A service level objective: at most `1 - objective` of all events may be bad.

    Attributes:
        name: a part of the names of recording rules, such as `run_errors`.
        title: what a reader sees.
        trouble: what happens if the objective is missed, as the headline of an alert.
        objective: the share of events that must be good.
        bad: the selector of bad events.
        all: the selector of all events.
        good: the selector of good events, instead of `bad`, where a histogram counts them.
        by: the label by which the objective is measured, besides the service.
    """

    name: str
    title: str
    trouble: str
    objective: float
    all: Series
    by: str
    bad: Series = ""
    good: Series = ""

    def __post_init__(self) -> None:
        if not 1 - 1 / FAST_BURN[0].factor < self.objective < 1:
            raise ValueError(
                f"the objective of {self.name} is {self.objective:g}: pass a share below 1 and above "
                f"{1 - 1 / FAST_BURN[0].factor:.3f}, because an error budget can't burn {FAST_BURN[0].factor:g} times "
                "too fast otherwise"
            )


RUN_SUCCESS: Final = Objective(
    "run_errors",
    "Runs that don't fail",
    "too many runs fail",
    DEFAULTS.run_success,
    bad=_ALL(names.LOOP_ITERATIONS_METRIC, one_of(names.LOOP_STOP_REASON, FAILED), part="count"),
    all=_ALL(names.LOOP_ITERATIONS_METRIC, none_of(names.LOOP_STOP_REASON, CANCELLED), part="count"),
    by=names.AGENT_NAME,
)
SLOW_RUN_SECONDS: Final = DEFAULTS.slow_run_seconds
"""A boundary of the buckets of `gen_ai.invoke_agent.duration` that Prometheus 2 and 3 write alike."""
if SLOW_RUN_SECONDS not in names.INVOKE_AGENT_DURATION.boundaries or int(SLOW_RUN_SECONDS) == SLOW_RUN_SECONDS:
    raise ValueError(
        f"SLOW_RUN_SECONDS is {SLOW_RUN_SECONDS:g}: pass a fractional boundary of the histogram's buckets, which are "
        f"{', '.join(f'{bound:g}' for bound in names.INVOKE_AGENT_DURATION.boundaries)}"
    )
RUN_LATENCY: Final = Objective(
    "slow_runs",
    f"Runs that take at most {SLOW_RUN_SECONDS} s",
    f"too many runs take more than {SLOW_RUN_SECONDS} s",
    DEFAULTS.run_latency,
    good=_ALL(names.INVOKE_AGENT_DURATION, f'le="{SLOW_RUN_SECONDS}"', NOT_CANCELLED, part="bucket"),
    all=_ALL(names.INVOKE_AGENT_DURATION, NOT_CANCELLED, part="count"),
    by=names.AGENT_NAME,
)
MODEL_SUCCESS: Final = Objective(
    "model_errors",
    "Model calls that don't fail",
    "too many model calls fail",
    DEFAULTS.model_success,
    bad=_ALL(MODEL_CALL_DURATION, has(names.ERROR_TYPE), NOT_CANCELLED, part="count"),
    all=_ALL(MODEL_CALL_DURATION, NOT_CANCELLED, part="count"),
    by=names.PROVIDER_NAME,
)
OBJECTIVES: Final = (RUN_SUCCESS, RUN_LATENCY, MODEL_SUCCESS)

WINDOWS: Final = ("5m", "30m", "1h", "2h", "6h")
LONG_WINDOWS: Final = ("1d", "3d")
BUDGET_WINDOW: Final = "30d"
"""The time in which an error budget may be used up."""


# The limits of the other alerts.

STUCK_RUN_SECONDS: Final = DEFAULTS.stuck_run_seconds
STUCK_TOOL_SECONDS: Final = DEFAULTS.stuck_tool_seconds
APPROVAL_SECONDS: Final = DEFAULTS.approval_seconds
"""The age of a call that waits for approval; by default, an `ApprovalAdvisor` waits for 300 seconds."""
READY_SECONDS: Final = DEFAULTS.ready_seconds
"""How long a run in a pending store may be decided before it resumes."""
PENDING_SECONDS: Final = DEFAULTS.pending_seconds
"""The age of a call in a pending store that nobody decides."""
IDLE_RUN_SECONDS: Final = DEFAULTS.idle_run_seconds
"""How long a durable run that waits for no person may make no progress."""
LIMITED_RUNS: Final = DEFAULTS.limited_runs
"""The share of runs that limits may end."""
REPEATED_CALLS: Final = 0.1
"""The share of tool calls that may repeat an earlier call."""
TOOL_ERRORS: Final = DEFAULTS.tool_errors
"""The share of a tool's calls that may fail."""
MODEL_ERRORS: Final = DEFAULTS.model_errors
"""The share of a model's calls that may fail."""
RATE_LIMITED: Final = 0.1
"""Requests that a provider refuses because of a rate limit, for each model call."""
FIRST_CHUNK_SECONDS: Final = DEFAULTS.first_chunk_seconds
"""The 95th percentile of the time to the first chunk."""
COST_FACTOR: Final = DEFAULTS.cost_factor
"""How much more than the median hour of the week an hour may cost."""
DAILY_COST: Final = DEFAULTS.daily_cost
"""The US dollars that all agents of a service may cost in a day."""
AUDIT_LAG_SECONDS: Final = 5
VERIFICATION_SECONDS: Final = 2 * 86_400
"""The age of the last verification of the audit trail."""
TELEMETRY_LOSS: Final = 0.01
"""The share of spans, metric points, log records and events that may be lost."""
QUEUE_FILL: Final = 0.8
"""The share of a collector's queue that may be full."""
SERIES: Final = 5_000
"""The series of traced_tools that a process may have in Prometheus."""
NEW_REFUSALS: Final = 0.1
"""The share of refused calls that is taken for normal if there is none of a week ago to compare with."""
FEW: Final = 5
"""The bad events below which an error budget does not alert anybody."""
ENOUGH: Final = 20
"""The events without which a share says little."""
