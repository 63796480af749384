"""Reports the results of verifications as metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traced_tools.observe.run_telemetry import TelemetryOptions


def report_verification(store: str, ok: bool, time: float, options: TelemetryOptions | None = None) -> None:
    """Report the result of a verification in this process.

    Args:
        store: identifies the store in this process; never exported.
        ok: whether the verification found no problem.
        time: when it ended, in seconds of Unix time.
        options: the providers; None for the current global providers.
    """
    from traced_tools.observe.run_telemetry import RunTelemetry, TelemetryOptions  # other readers start faster

    if (instruments := RunTelemetry(options or TelemetryOptions(), agent="").instruments) is not None:
        instruments.audit.verified(store, ok, time)
