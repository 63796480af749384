"""A client whose model asks for one batch of tools, tools that get stuck in it, and the telemetry of it."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from tests.captured import LogTexts, Telemetry, total
from tests.markers import MARKER
from tests.waiting import PATIENCE, until
from traced_tools import ChatClient, LoopLimits, ToolCall, ToolContext
from traced_tools.core import ToolDefinition, ToolMetadata
from traced_tools.loop import ToolCallingAdvisor
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import FunctionToolCallback, ToolCallingManager

NO_LIMITS = LoopLimits(max_tool_calls=None, max_calls_per_tool=None, max_repeated_calls=None)


def client_of(
    calls: Sequence[str | ToolCall],
    tools: Sequence[Any],
    telemetry: Telemetry,
    manager: ToolCallingManager | None = None,
    **settings: Any,
) -> ChatClient:
    """A client whose model requests `calls` in one answer and then answers done."""
    turn = [ToolCall(call) if isinstance(call, str) else call for call in calls]
    return ChatClient(
        ScriptedChatModel([turn, "done"]),
        **{
            "tools": tools,
            "limits": NO_LIMITS,
            "tool_calling_advisor": ToolCallingAdvisor(manager),
            "telemetry": telemetry.options,
            **settings,
        },
    )


def function_tool(function: Callable[..., Any], **metadata: Any) -> FunctionToolCallback:
    """Return the function as a tool, with settings for the loop."""
    name = getattr(function, "__name__", "partial")
    return FunctionToolCallback(function, name=name, metadata=ToolMetadata(**metadata))


def attributes(telemetry: Telemetry, span: str = "execute_tool") -> list[dict[str, Any]]:
    """The attributes of the spans whose name begins with `span`, in order of the calls."""
    found = [dict(each.attributes or {}) for each in telemetry.named(span)]
    return sorted(found, key=lambda each: each.get("traced_tools.tool.batch_index", 0))


def recorded(telemetry: Telemetry, metric: str) -> float:
    """The recorded value of a metric: the sum of a counter, the number of measurements of a histogram."""
    return sum(total(point) if point.count is None else point.count for point in telemetry.metric(metric))


@contextmanager
def nothing_logged() -> Iterator[None]:
    """Assert that neither asyncio nor `concurrent.futures` logs anything, even when garbage is collected."""
    complaints = LogTexts()
    loggers = [logging.getLogger(name) for name in ("asyncio", "concurrent.futures")]
    for logger in loggers:
        logger.addHandler(complaints)
    try:
        yield
        gc.collect()
    finally:
        for logger in loggers:
            logger.removeHandler(complaints)
    assert complaints.texts == [], complaints.texts


class Stuck:
    """A blocking tool that runs until it is released, and then returns "late" or raises."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.release = threading.Event()
        self.begun = threading.Semaphore(0)
        self.threads: list[threading.Thread] = []
        self.contexts: list[ToolContext] = []

    def stuck(self, context: ToolContext) -> str:
        """Wait."""
        self.threads.append(threading.current_thread())
        self.contexts.append(context)
        self.begun.release()
        self.release.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        return "late"

    def ends(self) -> None:
        """Release it and its threads."""
        self.release.set()
        for thread in {*self.threads} - {threading.current_thread()}:
            thread.join(PATIENCE)
            assert not thread.is_alive()


class Stubborn:
    """An async tool that ignores cancellation until it is released, and then raises."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.cancelled = 0

    async def stubborn(self) -> None:
        """Wait."""
        self.loop = asyncio.get_running_loop()
        self.go = asyncio.Event()
        self.begun.set()
        while not self.go.is_set():
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
        raise LookupError(MARKER)

    def ends(self) -> None:
        """Release it, from any thread except its loop's."""
        for step in (self._release, asyncio.sleep, asyncio.sleep):
            asyncio.run_coroutine_threadsafe(step(0), self.loop).result(PATIENCE)

    async def _release(self, _: float) -> None:
        self.go.set()


class Custom:
    """A custom tool with a time-out."""

    definition = ToolDefinition(name="stuck")

    def __init__(self, stuck: Stuck, **metadata: Any) -> None:
        self.metadata = ToolMetadata(**metadata)
        self.stuck = stuck

    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        """Wait."""
        return self.stuck.stuck(context or ToolContext())


class AsyncCustom(Custom):
    """The same, with an `acall`."""

    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        """Refuse."""
        raise AssertionError("the tool has an acall")

    async def acall(self, tool_input: str, context: ToolContext | None = None) -> str:
        """Wait."""
        await asyncio.Event().wait()
        return "late"


def stuck_tool(kind: str, stuck: Stuck, **metadata: Any) -> Any:
    """A tool of the given kind, named `stuck`, that never finishes by itself."""

    async def coroutine() -> None:
        await asyncio.Event().wait()

    def generator(context: ToolContext) -> Iterator[str]:
        yield "first"
        yield stuck.stuck(context)

    async def agenerator() -> AsyncIterator[str]:
        yield "first"
        await asyncio.Event().wait()

    if kind in ("custom", "async custom"):
        return (Custom if kind == "custom" else AsyncCustom)(stuck, **metadata)
    functions: dict[str, Callable[..., Any]] = {
        "blocking": stuck.stuck,
        "async": coroutine,
        "generator": generator,
        "async generator": agenerator,
        "partial": partial(stuck.stuck),
        "wrapper": lambda: coroutine(),
        "generator wrapper": lambda: agenerator(),
    }
    return FunctionToolCallback(functions[kind], name="stuck", metadata=ToolMetadata(**metadata))


KINDS = (
    "blocking",
    "async",
    "generator",
    "async generator",
    "partial",
    "wrapper",
    "generator wrapper",
    "custom",
    "async custom",
)


@contextmanager
def ctrl_c(when: Callable[[], bool]) -> Iterator[None]:
    """Interrupt the main thread once, when `when` holds."""
    interrupted, outer = threading.Event(), signal.getsignal(signal.SIGINT)

    def handle(*_: object) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    main = threading.main_thread().ident or 0

    def waits() -> bool:
        frames = [frame.f_code.co_name for frame, _ in traceback.walk_stack(sys._current_frames()[main])]
        return frames[0] == "wait" and "start" not in frames

    def press() -> None:
        until(lambda: when() and waits())
        while not interrupted.is_set():  # CPython may lose an interrupt that comes just before a wait
            signal.pthread_kill(main, signal.SIGINT)
            interrupted.wait(0.1)

    signal.signal(signal.SIGINT, handle)
    thread = threading.Thread(target=press)
    thread.start()
    try:
        yield
    finally:
        interrupted.set()
        thread.join(PATIENCE)
        signal.signal(signal.SIGINT, outer)
