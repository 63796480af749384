"""What one worker of a store does for all of them: it looks for runs to deliver, and for those of dead workers."""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from traced_tools.approvals.due_runs import DueRuns
from traced_tools.approvals.run_logs import MAX_LIVES
from traced_tools.durable.deliveries import Deliveries, RunDelivery
from traced_tools.durable.presence import Presence
from traced_tools.observe.failures import error_type

_PAUSE: Final = 0.5
"""Seconds between two looks."""
_SHARE: Final = 20
"""A search for runs takes at most one part in so many of the time of a processor."""
_FORGET_AFTER: Final = 60.0
"""Seconds after which a delivery that has ended is deleted. A run that is still where it was is delivered again."""
_LOG: Final = logging.getLogger(__name__)


class Lookout:
    """Looks for runs to deliver in a thread, as long as this worker is the one that does.

    Args:
        runs: the runs of the store.
        deliveries: the queues.
        presence: which workers live.
    """

    def __init__(self, runs: DueRuns, deliveries: Deliveries, presence: Presence) -> None:
        self._runs, self._deliveries, self._presence = runs, deliveries, presence
        self._sent_ids: set[str] = set()
        self._cleaned_at = 0.0
        self._pause = _PAUSE
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look_again_and_again, name="traced-tools-lookout", daemon=True)

    def begin(self) -> None:
        """Look from now on."""
        self._thread.start()

    def end(self) -> None:
        """Look no more."""
        self._stop.set()
        self._thread.join()

    def look(self) -> None:
        """Deliver what is due and what dead workers have left, if this worker is the one that looks."""
        if not self._presence.leads():
            self._sent_ids.clear()
            return
        self._take_over()
        self._forget()
        began = time.thread_time()
        runs = self._runs.due()
        self._pause = max(_PAUSE, _SHARE * (time.thread_time() - began))
        for run in runs:
            delivery = RunDelivery(run.agent, run.key, run.last)
            if delivery.id not in self._sent_ids:
                self._deliveries.send(delivery, run.principal, run.priority)
                self._sent_ids.add(delivery.id)

    def _look_again_and_again(self) -> None:
        while True:
            try:
                self.look()
            except Exception as error:  # the store may be back at the next look
                _LOG.warning("workers cannot look for runs: %s", error_type(error))
            if self._stop.wait(self._pause):
                return

    def _take_over(self) -> None:
        """Deliver what dead workers had taken."""
        pending = self._deliveries.pending()
        living = self._presence.living({process for process, _ in pending})
        for process, delivery in pending:
            if process not in living:
                self._deliver_again(delivery)

    def _deliver_again(self, delivery: RunDelivery) -> None:
        run = self._runs.find(delivery.key)
        if run is not None and run.last == delivery.last:  # the worker died before the run's next life
            self._deliveries.resume(delivery)
            return
        if run is not None and run.status == "running":
            if run.lives >= MAX_LIVES:
                self._runs.interrupt(run.key, run.lives)
            else:
                self._deliveries.send(RunDelivery(run.agent, run.key, run.last), run.principal, run.priority)
        self._deliveries.delete([delivery.id])

    def _forget(self) -> None:
        now = time.monotonic()
        if now - self._cleaned_at >= _FORGET_AFTER / 6:
            self._cleaned_at = now
            ids = self._deliveries.ended(_FORGET_AFTER)
            if ids:
                self._deliveries.delete(ids)
                self._sent_ids.difference_update(ids)
