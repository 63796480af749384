"""Deliveries of keys to workers, on DBOS: each is for one state of one run.

DBOS keeps the keys in tables of its own. It gets no question, answer, result or error: a delivery takes the name of the
agent, a key and a number, and returns a word.
"""

from __future__ import annotations

import logging
import math
import sqlite3
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Engine

from traced_tools.core.disk import create_private
from traced_tools.core.frozen import frozen
from traced_tools.durable_run import MOST_PRIORITY
from traced_tools.errors import ConfigurationError
from traced_tools.stores.advisory_locks import lock_number
from traced_tools.stores.database import Database
from traced_tools.stores.engine import store_engine, sync_sqlite

if TYPE_CHECKING:
    from dbos import DBOS

_APPLICATION: Final = "traced_tools"
_SCHEMA: Final = "traced_tools_dbos"
_VERSION: Final = "1"
"""What DBOS knows as the version of the application. Code may change between deliveries, so it stays the same."""
_WORKFLOW: Final = "traced_tools.deliver"
_POLLING: Final = 0.25
"""Seconds between two looks of a worker into a queue."""
_ENDED: Final = ("SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED")
"""What DBOS calls deliveries that have ended."""
_MOST_DELETED: Final = 10_000
"""Deliveries that are deleted at once."""


@frozen
class RunDelivery:
    """A key on its way to a worker.

    Attributes:
        agent: the name of the client that drives the run.
        key: the key of the run.
        last: the number of the last record of its log; if the log has another one, the delivery does nothing.
    """

    agent: str
    key: str
    last: int

    @property
    def id(self) -> str:
        """What DBOS knows it by: it takes a delivery with an id once."""
        return f"{self.key}@{self.last}"


class Deliveries:
    """The queues of a store, one for each agent, on DBOS. A process has one such object at a time.

    Args:
        database: the database of the store. DBOS has a schema of its own in it, or a file of its own beside it.
        process: the id of the process.
        take: drives the run of a delivery, and returns a word that says what happened. It raises no error.

    Attributes:
        take: the same.
    """

    def __init__(self, database: Database, process: str, take: Callable[[RunDelivery], Awaitable[str]]) -> None:
        self._database = database
        self._process = process
        self.take: Final = take
        self._dbos: type[DBOS] = load_dbos()
        self._engine: Engine | None = None

    def claim(self) -> None:
        """Make this the one object of its kind in this process.

        Raises:
            ConfigurationError: if the process has another DBOS.
        """
        global _current
        self._dbos(config=self._config())
        if self._process != self._dbos.executor_id:
            raise ConfigurationError(
                "this process has a DBOS already: run Workers in a process of its own, once at a time"
            )
        _current = self
        _register(self._dbos)

    def begin(self, agents: Iterable[str], at_once: int, per_tenant: int | None) -> None:
        """Take deliveries from now on.

        Args:
            agents: whose queues to work on.
            at_once: how many deliveries of each agent this process takes at once.
            per_tenant: how many deliveries of a partition all processes take at once; None for no limit.
        """
        queues = [queue_name(agent) for agent in agents]
        self._dbos.listen_queues(queues)
        self._dbos.launch()
        for queue in queues:
            self._dbos.register_queue(
                queue,
                worker_concurrency=at_once,
                partition_concurrency=per_tenant,
                polling_interval_sec=_POLLING,
                on_conflict="always_update",
            )

    def end(self, grace: float) -> None:
        """Take no more deliveries, and cut those that go on after so many seconds."""
        global _current
        if _current is self:
            self._dbos.destroy(workflow_completion_timeout_sec=math.ceil(grace))
            _current = None
        if self._engine is not None:
            self._engine.dispose()

    def send(self, delivery: RunDelivery, tenant: str | None, priority: int) -> None:
        """Put a delivery into the queue of its agent; one that is there, or has ended lately, stays as it is.

        Args:
            delivery: the delivery.
            tenant: on whose behalf the run is.
            priority: the priority of the run, up to `MOST_PRIORITY`.
        """
        self._dbos.enqueue_workflow_with_options(
            {
                "workflow_name": _WORKFLOW,
                "queue_name": queue_name(delivery.agent),
                "workflow_id": delivery.id,
                "queue_partition_key": partition(tenant),
                "priority": 1 + MOST_PRIORITY - priority,  # for DBOS, 1 comes first
            },
            delivery.agent,
            delivery.key,
            delivery.last,
        )

    def resume(self, delivery: RunDelivery) -> None:
        """Put a delivery that a process has taken back into its queue."""
        self._dbos.resume_workflow(delivery.id, queue_name=queue_name(delivery.agent))

    def delete(self, ids: Collection[str]) -> None:
        """Delete deliveries by their ids."""
        self._dbos.delete_workflows([*ids])

    def pending(self) -> list[tuple[str, RunDelivery]]:
        """Return the deliveries that processes have taken and that have not ended, each with the process."""
        rows = self._dbos.list_workflows(name=_WORKFLOW, status="PENDING", load_output=False)
        return [(row.executor_id or "", RunDelivery(*row.input["args"])) for row in rows if row.input is not None]

    def ended(self, seconds: float) -> list[str]:
        """Return the ids of deliveries that ended at least so many seconds ago."""
        before = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - seconds))
        rows = self._dbos.list_workflows(
            name=_WORKFLOW,
            status=[*_ENDED],
            completed_before=before,
            limit=_MOST_DELETED,
            load_input=False,
            load_output=False,
        )
        return [row.workflow_id for row in rows]

    def _config(self) -> Any:
        from dbos import DBOSPortableJSONSerializer

        config: dict[str, Any] = {
            "name": _APPLICATION,
            "executor_id": self._process,
            "application_version": _VERSION,
            "log_level": logging.getLogger("dbos").level or logging.WARNING,  # DBOS would set it to INFO
            "serializer": DBOSPortableJSONSerializer(),  # the default one is pickle
            "use_listen_notify": False,  # which only messages and events need
            "scheduler_polling_interval_sec": 3600.0,
        }
        url = self._database.engine.url
        if self._database.is_sqlite:
            path = Path(f"{url.database}-dbos")
            _prepare_file(path)
            config["system_database_url"] = f"sqlite:///{path}"
        else:
            config["system_database_url"] = url.render_as_string(hide_password=False)
            self._engine = store_engine(url, pool_size=5, pool_pre_ping=True)  # which hides parameters in errors
            config["system_database_engine"] = self._engine
            config["dbos_system_schema"] = _SCHEMA
        return config


_current: Deliveries | None = None
"""DBOS is one for each process, and so are the deliveries."""
_registered: Any = None


def queue_name(agent: str) -> str:
    """Return what DBOS calls the queue of an agent."""
    return f"{_APPLICATION}:{agent}"


def partition(tenant: str | None) -> str:
    """Return what DBOS calls the part of a queue that a tenant has: a digest, because a principal is personal data."""
    return "-" if tenant is None else f"{lock_number('tenant', tenant):x}"


def load_dbos() -> type[DBOS]:
    """Return DBOS; raise `ConfigurationError` if it is not installed."""
    # DBOS prints to the console unless its logger has a handler; then its records go where those of others go.
    if not (log := logging.getLogger("dbos")).handlers:
        log.addHandler(logging.NullHandler())
    try:
        from dbos import DBOS
    except ImportError:
        pass
    else:
        return DBOS
    raise ConfigurationError("Workers need DBOS: pip install 'traced_tools[durable]'")


async def _deliver(agent: str, key: str, last: int) -> str:
    return "no worker" if _current is None else await _current.take(RunDelivery(agent, key, last))


def _register(dbos: type[DBOS]) -> None:
    """Tell DBOS once in each process what a delivery calls."""
    global _registered
    if _registered is None:
        _registered = dbos.workflow(name=_WORKFLOW)(_deliver)


def _prepare_file(path: Path) -> None:
    """Create a missing file for its owner alone, in the mode in which readers don't wait for a writer; it stays."""
    create_private(path)
    with closing(sqlite3.connect(path)) as connection:
        sync_sqlite(connection, None)
