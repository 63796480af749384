"""A run that outlives its process: how it is driven, and where it is afterwards."""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections.abc import Callable
from dataclasses import field, replace
from typing import Final, Generic

from traced_tools.core.checks import expect, expect_whole
from traced_tools.core.enums import RunStatus
from traced_tools.core.frozen import frozen
from traced_tools.errors import (
    ConfigurationError,
    LoopLimitExceeded,
    ResumeError,
    RunTaken,
    ToolDefinitionError,
    ToolExecutionError,
    ToolNotFoundError,
)
from traced_tools.loop.exchange import ChatClientResponse, OutputT
from traced_tools.loop.paused_runs import KeepsDurableRuns, OpenedRun, RunLife
from traced_tools.observe.failures import error_type
from traced_tools.request_spec import ChatClientRequestSpec

_MOST_KEY: Final = 200
MOST_PRIORITY: Final = 1_000_000
"""The highest priority of a run; the lowest one is its negative."""
_LASTING: Final = (LoopLimitExceeded, ToolDefinitionError, ToolExecutionError, ToolNotFoundError)
"""Errors that another life would meet as well."""
_STOPPED: Final = (CancelledError, KeyboardInterrupt, SystemExit)
"""What ends a life while its process goes on, or ends in order."""
_LOG: Final = logging.getLogger(__name__)


@frozen
class DurableRun(Generic[OutputT]):
    """Where a durable run is after `submit` or `drive`.

    Attributes:
        key: the key of the run.
        status: `submitted` before its first life; `waiting` while calls wait for a person; `finished`; `failed` if
            another life would fail, too; `withdrawn` if somebody withdrew or deleted it; `running` or `interrupted` if
            another process drives it, or has left it.
        content: the text of the answer, if it is finished.
        stop_reason: why it ended; None if it has not ended.
        response: the whole response, if this process has driven the run to its end or to its wait; else None.
    """

    key: str
    status: RunStatus
    content: str = field(default="", repr=False)
    stop_reason: str | None = None
    response: ChatClientResponse[OutputT] | None = field(default=None, repr=False)


def check_key(key: object) -> None:
    """Raise `TypeError` or `ValueError` unless `key` can be the key of a run."""
    expect("key", key, str, "a str that identifies the run, such as the id of an order")
    if isinstance(key, str) and not (1 <= len(key) <= _MOST_KEY and key.isprintable() and key.strip()):
        raise ValueError(f"key must have 1 to {_MOST_KEY} printable characters, and not be blank")


def check_priority(priority: object) -> None:
    """Raise `TypeError` or `ValueError` unless `priority` can be the priority of a run."""
    expect_whole("priority", priority, -MOST_PRIORITY)
    if isinstance(priority, int) and priority > MOST_PRIORITY:
        raise ValueError(f"priority must be at most {MOST_PRIORITY:,}")


def durable_store(store: object) -> KeepsDurableRuns:
    """Return the store of a client, or raise `ConfigurationError` if it keeps no durable runs."""
    if not isinstance(store, KeepsDurableRuns):
        raise ConfigurationError(
            "a durable run needs a store that keeps its log: pass pending_store=PendingStore(...) to the client"
        )
    return store


async def drive_run(
    key: str, opened: OpenedRun, request_of: Callable[[RunLife], ChatClientRequestSpec[OutputT]]
) -> DurableRun[OutputT]:
    """Drive a run to its end or its next wait, as a flow.

    Args:
        key: the key of the run.
        opened: where it is.
        request_of: returns the request of its next life.
    """
    life = opened.life
    if life is None:
        return DurableRun(key, opened.status, opened.content, opened.stop_reason)
    request = replace(request_of(life), life=life)
    try:
        response = await request.begin()
    except RunTaken:
        raise
    except (Exception, *_STOPPED) as error:
        refusal = error.lasting if isinstance(error, ResumeError) else None
        try:
            await life.failed(error, lasting=refusal is not None or isinstance(error, _LASTING), refusal=refusal)
        except Exception as problem:  # the error on its way is the one to raise; the next life finds what is recorded
            _LOG.warning("the log of a run lacks that it was interrupted: %s", error_type(problem))
        raise
    status: RunStatus = "waiting" if response.state is not None else "finished"
    return DurableRun(key, status, response.content, response.stop_reason, response)
