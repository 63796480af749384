"""Workers: processes that share a store, and drive its durable runs to their ends."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Final, Self

from traced_tools.approvals.due_runs import DueRun
from traced_tools.approvals.pending_store import PendingStore
from traced_tools.client import ChatClient
from traced_tools.core.checks import expect, expect_whole
from traced_tools.durable.deliveries import Deliveries, RunDelivery, load_dbos
from traced_tools.durable.lookout import Lookout
from traced_tools.durable.presence import presence
from traced_tools.errors import PendingStoreError, ResumeError, RunTaken, UnknownRun
from traced_tools.flow.steps import Call
from traced_tools.observe.failures import error_type

_LONGEST_RETRY: Final = 30.0
_LOG: Final = logging.getLogger(__name__)


class Workers:
    """Drives the durable runs of a store in this process, beside other processes that do the same.

    Use it as a context manager. Within the block, it drives runs that are submitted, runs whose calls are decided or
    expired, and runs that a dead worker has left. It drives a run that an error has interrupted again after a pause,
    which grows with each life. All runs are on one event loop, in a thread of its own. A run that waits takes no thread
    and no place.

    At the end of the block, the worker begins nothing more. It cuts the runs that go on after `grace` seconds, as if
    the process had died: they go on in another worker, or when this one is back.

    Needs the extra `durable`. DBOS carries the keys. A store on SQLite has one worker process, a store on PostgreSQL
    several. All of them pass the same `at_once` and `per_tenant`.

    Args:
        store: the store of all clients.
        clients: who drives the runs; the queue of each has its name.
        name: names this worker. One process of the store has it at a time.
        at_once: how many runs this worker drives at once.
        per_tenant: how many runs of a principal all workers drive at once, for each client; None for no limit. Runs
            without a principal count as those of one.
        tool_context: returns the `tool_context` of a run from its key and its principal; a log doesn't keep it.
        grace: seconds that runs may go on after the block.

    Raises:
        ConfigurationError: without DBOS; at the beginning of the block, if a living worker has the name, if another
            process works on an SQLite store, or if this process has a DBOS already.
        TypeError, ValueError: for an invalid argument.
    """

    def __init__(
        self,
        store: PendingStore,
        clients: Iterable[ChatClient],
        *,
        name: str,
        at_once: int = 32,
        per_tenant: int | None = None,
        tool_context: Callable[[str, str | None], Mapping[str, Any]] | None = None,
        grace: float = 20.0,
    ) -> None:
        expect("store", store, PendingStore, "a PendingStore")
        expect("name", name, str, "a str")
        if not name.strip():
            raise ValueError("name must not be blank: pass what tells this worker from others, such as its host")
        expect_whole("at_once", at_once, 1)
        if per_tenant is not None:
            expect_whole("per_tenant", per_tenant, 1)
        if not grace >= 0:
            raise ValueError("grace must be a number of seconds, 0 or more")
        load_dbos()
        self._store = store
        self._clients = _by_name(clients, store)
        self._name = name
        self._at_once, self._per_tenant = at_once, per_tenant
        self._tool_context = tool_context
        self._grace = grace
        self._ending = ExitStack()

    def __enter__(self) -> Self:
        # In a thread without an event loop, because DBOS would drive the runs on a loop that it finds.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(self._begin).result()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(self._ending.close).result()

    def _begin(self) -> None:
        runs, process = self._store.due_runs, f"{self._name}:{secrets.token_hex(8)}"
        places = asyncio.Semaphore(self._at_once)  # those of all clients together

        async def take(delivery: RunDelivery) -> str:
            async with places:
                return await self._drive(delivery)

        sign = presence(runs.database, self._name, process)
        deliveries = Deliveries(runs.database, process, take)
        lookout = Lookout(runs, deliveries, sign)
        with ExitStack() as ending:
            ending.callback(sign.leave)  # at last: others then take over what was cut
            ending.callback(deliveries.end, self._grace)
            deliveries.claim()  # first, because closing a locked file would release the lock of the whole process
            sign.enter()
            deliveries.begin(self._clients, self._at_once, self._per_tenant)
            ending.callback(lookout.end)
            lookout.begin()
            self._ending = ending.pop_all()

    async def _drive(self, delivery: RunDelivery) -> str:
        """Drive the run of a delivery, and return what happened. No error leaves it: DBOS would keep the text."""
        runs = self._store.due_runs
        life_began: DueRun | None = None
        try:
            run = await Call[DueRun | None](runs.find, delivery.key).arun()
            if run is None or run.last != delivery.last:
                return "obsolete"
            context: Mapping[str, Any] = {}
            if self._tool_context is not None:
                context = await Call[Mapping[str, Any]](self._tool_context, run.key, run.principal).arun()
            life_began = run
            await self._clients[run.agent].adrive(run.key, tool_context=context)
        except RunTaken:
            return "taken"
        except asyncio.CancelledError:  # the block has ended, and its grace
            _LOG.warning("the run %r was cut off: it goes on in another worker, or when this one is back", delivery.key)
            raise
        except (Exception, SystemExit) as error:  # a tool that exits must not end the worker
            is_ours = isinstance(error, ResumeError | UnknownRun)  # the text of others may have contents
            _LOG.warning("a life of the run %r has ended: %s", delivery.key, error if is_ours else error_type(error))
            if life_began is not None:
                await self._interrupt(life_began)
            return "interrupted"
        return "driven"

    async def _interrupt(self, run: DueRun) -> None:
        """Make sure that the store knows that a life has ended: nobody else would begin the next one."""
        pause = 1.0
        while True:
            try:
                await Call[None](self._store.due_runs.interrupt, run.key, run.lives + 1).arun()
            except PendingStoreError as error:
                _LOG.warning("the store cannot record that the run %r is interrupted: %s", run.key, error_type(error))
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_RETRY)
            else:
                return

    def __repr__(self) -> str:
        return f"Workers({self._store!r}, agents={[*self._clients]})"


def _by_name(clients: Iterable[ChatClient], store: PendingStore) -> dict[str, ChatClient]:
    agents: dict[str, ChatClient] = {}
    for client in clients:
        expect("clients", client, ChatClient, "ChatClients")
        if agents.setdefault(client.name, client) is not client:
            raise ValueError(f"clients must have different names, and two have the name {client.name!r}")
        if client.pending_store is not store:
            raise ValueError(f"the client {client.name!r} has another pending_store: pass it the store of the workers")
    if not agents:
        raise ValueError("clients must have at least one client")
    return agents
