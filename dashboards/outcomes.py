"""Groups of stop reasons and decisions, which boards and rules count together."""

from __future__ import annotations

from typing import Final

from traced_tools.core.enums import STOP_REASONS, Decision, RunStatus, StopReason

FAILED: Final[tuple[StopReason, ...]] = ("error", "deadline", "consecutive_errors")
"""The run did not give its user an answer because something broke or took too long."""
LIMITED: Final[tuple[StopReason, ...]] = (
    "max_iterations",
    "max_tool_calls",
    "max_calls_per_tool",
    "repeated_call",
    "token_budget",
)
"""A limit ended the run: its model did not come to an end by itself."""
CANCELLED: Final[tuple[StopReason, ...]] = ("cancelled",)
"""The user left. That is neither a success nor a failure, and doesn't count."""
WAITING: Final[tuple[StopReason, ...]] = ("awaiting_approval", "awaiting_input")
"""A call waits for approval or input. That is neither a success nor a failure, until a run goes on from there."""
SUCCEEDED: Final = tuple(reason for reason in STOP_REASONS if reason not in (*FAILED, *LIMITED, *CANCELLED, *WAITING))

GOES_ON: Final[tuple[RunStatus, ...]] = ("submitted", "running", "interrupted")
"""The durable run waits for no person: a process drives it, or should."""

ACCEPTED: Final[tuple[Decision, ...]] = ("allowed", "approved", "answered")
"""The tool ran, or an advisor answered the call."""
COLORS: Final[dict[str, str]] = {
    "answered": "green",
    "return_direct": "blue",
    "advisor": "purple",
    "awaiting_approval": "light-blue",
    "awaiting_input": "super-light-blue",
    "cancelled": "text",
    "error": "red",
    "deadline": "dark-red",
    "consecutive_errors": "light-red",
    "max_iterations": "orange",
    "max_tool_calls": "dark-orange",
    "max_calls_per_tool": "light-orange",
    "repeated_call": "dark-yellow",
    "token_budget": "light-yellow",
}
"""Grafana's colors of the stop reasons: failures are red, limits are orange or yellow."""

REFUSED: Final[tuple[Decision, ...]] = ("denied", "rejected")
"""A policy or a person refused the call."""
