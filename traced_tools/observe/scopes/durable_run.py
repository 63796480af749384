"""What the metrics say of the lives of a durable run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traced_tools.observe import names

if TYPE_CHECKING:
    from traced_tools.core.enums import RunStatus
    from traced_tools.observe.attributes import Attributes
    from traced_tools.observe.run_telemetry import RunTelemetry


class LifeMetrics:
    """Records one life of a durable run.

    Args:
        telemetry: the telemetry of the run that is the life.
    """

    def __init__(self, telemetry: RunTelemetry) -> None:
        self._telemetry = telemetry

    def began(self, status: RunStatus, idle: float) -> None:
        """Record that the life began.

        Args:
            status: the status in which the run was left.
            idle: the seconds since then. What a person took is no time of the queue, so it isn't recorded.
        """
        if status != "waiting":
            labels = self._labels(status)
            self._telemetry.record(lambda instruments: [(instruments.durable_run_idle, idle, labels)])

    def recorded(self, seconds: float) -> None:
        """Record how long the store took to keep a record."""
        labels = self._telemetry.agent_label
        self._telemetry.record(lambda instruments: [(instruments.durable_run_record_duration, seconds, labels)])

    def cut_call_answered(self) -> None:
        """Record that the model is told of a call whose outcome is unknown, because its process ended."""
        labels = self._telemetry.agent_label
        self._telemetry.record(lambda instruments: [(instruments.durable_run_unknown_outcomes, 1, labels)])

    def taken(self) -> None:
        """Record that the life stops, because its run is no longer its own."""
        labels = self._telemetry.agent_label
        self._telemetry.record(lambda instruments: [(instruments.durable_run_taken, 1, labels)])

    def ended(self, status: RunStatus, lives: int) -> None:
        """Record that the run has finished or failed.

        Args:
            status: which of both.
            lives: how many lives it had.
        """
        labels = self._labels(status)
        self._telemetry.record(lambda instruments: [(instruments.durable_run_lives, lives, labels)])

    def _labels(self, status: RunStatus) -> Attributes:
        return {**self._telemetry.agent_label, names.DURABLE_RUN_STATUS: status}
