"""Tools that start threads of their own: `python -m tests.judges.threads_app`.

The output is JSON: the spans that the threads make, with the names above them.
"""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor

from opentelemetry.instrumentation.threading import ThreadingInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.judges.paths import paths_of
from tests.modes import ALL_MODES, run
from traced_tools import ChatClient, TelemetryOptions, ToolCall
from traced_tools.testing import ScriptedChatModel

provider, kept, pool = TracerProvider(), InMemorySpanExporter(), ThreadPoolExecutor(1)
provider.add_span_processor(SimpleSpanProcessor(kept))


def work(name: str) -> None:
    """Make a span."""
    with provider.get_tracer("application").start_as_current_span(name):
        pass


def blocking() -> str:
    """Work in threads."""
    threads = threading.Thread(target=work, args=["thread"]), threading.Timer(0, work, ["timer"])
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pool.submit(work, "submit").result()
    list(pool.map(work, ["map"]))
    return "done"


async def coroutine() -> str:
    """Work in executors."""
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, work, "default executor")
    await loop.run_in_executor(pool, work, "own executor")
    return "done"


def main() -> None:
    """Run an agent in each mode, and print the paths of its spans."""
    ThreadingInstrumentor().instrument()
    options = TelemetryOptions(provider)
    found = {}
    for mode in ALL_MODES:
        kept.clear()
        model = ScriptedChatModel([[ToolCall("blocking"), ToolCall("coroutine")], "done"])
        run(mode, ChatClient(model, tools=[blocking, coroutine], telemetry=options).prompt("?"))
        found[mode] = paths_of(kept.get_finished_spans())
    print(json.dumps(found))


if __name__ == "__main__":
    main()
