"""What features add: content on spans, a policy, approvals in a store, and streams over HTTP.

Each stands beside a pass, a run or a stream without it. Of passes, the cost is the slope between runs of different
length, as in `bench_loop`.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from httpx_sse import EventSource

from tests.bench.openai_events import openai_events
from tests.bench.report import Row, Section
from tests.bench.timing import Case, Series, sample
from tests.bench.workload import NO_LIMITS, CountingModel, Sdk, add, repeated
from traced_tools import (
    Advisor,
    Approve,
    AssistantMessage,
    ChatClient,
    ContentCapture,
    Policy,
    PolicyAdvisor,
    Rule,
    TelemetryOptions,
    ToolCall,
    tool,
)
from traced_tools.approvals import PendingStore
from traced_tools.models import ChatModel, ChatRequest, ChatResponse, OpenAIChatModel
from traced_tools.testing import ReplayServer, Reply

LENGTHS = (10, 50, 150)
CAPTURE_TARGET = 3.0
GROWTH_TARGET_PERCENT = 10
PAUSE_TARGET_US = 1500
RULES = (1, 10_000)
CHUNKS = 200
STREAMS = (1, 50, 500)


def feature_sections(rounds: int, providers: Sdk, runner: asyncio.Runner) -> list[Section]:
    """Return what each feature costs."""
    return [
        _capture_section(rounds, providers),
        _policy_section(rounds),
        _approval_section(max(50, rounds)),
        _streaming_section(max(3, rounds // 4), providers, runner),
    ]


def _run(passes: int, telemetry: TelemetryOptions | None = None, *advisors: Advisor) -> Case:
    client = ChatClient(CountingModel(passes), tools=[add], limits=NO_LIMITS, advisors=advisors, telemetry=telemetry)
    return Case(repeated(client.prompt("What is 41 + 1?").call, 1))


def _timed(label: str, series: Series, at_most: float | None = None) -> Row:
    return Row(label, statistics.median(series.cpu), "us", statistics.median(series.wall), series.fastest, at_most)


def _capture_section(rounds: int, providers: Sdk) -> Section:
    """Return the cost of a pass with content on spans, between 10 and 50 and between 50 and 150 passes."""
    captures = {
        "no content": None,
        "content": ContentCapture("SPAN_ONLY"),
        "content, a redactor of single messages": ContentCapture("SPAN_ONLY", _unchanged, per_message=True),
        "content, a redactor of the whole conversation": ContentCapture("SPAN_ONLY", _unchanged),
    }
    cases = {
        f"{name} {length}": _run(length, replace(providers.options, capture=capture))
        for name, capture in captures.items()
        for length in LENGTHS
    }
    series = sample(cases, max(4, rounds // 4), providers.flush)
    without = series["no content 150"].slope(series["no content 50"], 100)
    rows = []
    for name in captures:
        ten, fifty, most = (series[f"{name} {length}"] for length in LENGTHS)
        short, long = fifty.slope(ten, 40), most.slope(fifty, 100)
        rows.append(_timed(f"{name}, passes 50-150", long))
        if name != "no content":
            growth = (statistics.median(long.cpu) / statistics.median(short.cpu) - 1) * 100
            rows.append(Row("that / no content", long.ratio(without), "x", at_most=CAPTURE_TARGET, digits=2))
            rows.append(Row("passes 50-150 more than 10-50", growth, "%", at_most=GROWTH_TARGET_PERCENT))
    return Section("one pass with content on spans, everything on", rows)


def _unchanged(name: str, value: object) -> object:
    return value


def _policy_section(rounds: int) -> Section:
    """Return the cost of a pass with a policy, whose last rule is for the tool."""
    cases = {f"none {length}": _run(length) for length in LENGTHS[:2]}
    for count in RULES:
        rules = [Rule(f"rule-{index}", tool=f"tool_{index}", then="deny") for index in range(count - 1)]
        advisor = PolicyAdvisor(Policy([*rules, Rule("adds", tool="add", then="allow")]))
        cases |= {f"{count} {length}": _run(length, None, advisor) for length in LENGTHS[:2]}
    logging.getLogger("traced_tools.policy").setLevel(logging.ERROR)  # it warns of each rule for a tool that is unknown
    series = sample(cases, rounds, lambda: None)
    without = series["none 50"].slope(series["none 10"], 40)
    rows = [_timed("a pass without a policy", without)]
    for count in RULES:
        cost = series[f"{count} 50"].slope(series[f"{count} 10"], 40)
        rows.append(_timed(f"added by a policy of {count:,}", cost.slope(without, 1)))
    return Section("rules of a policy, no SDK", rows)


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay an amount in EUR."""
    return f"paid {amount} EUR"


class PayingModel(ChatModel):
    """Asks for one payment, then answers."""

    provider, model = "bench", "bench-1"

    def call(self, request: ChatRequest) -> ChatResponse:
        """Return the response of this pass."""
        if len(request.messages) == 1:
            asking = AssistantMessage([ToolCall("pay", {"amount": 5}, "call_1")])
            return ChatResponse(asking, finish_reason="tool_call")
        return ChatResponse(AssistantMessage("Paid."), finish_reason="stop")


def _approval_section(rounds: int) -> Section:
    """Return the cost of a run that pauses for an approval, and of the run that resumes it."""
    with tempfile.TemporaryDirectory(prefix="bench-approvals-", dir=".") as folder:
        with PendingStore(Path(folder) / "pending.db") as store:
            cases = {"none": Case(_paused_and_resumed(None)), "store": Case(_paused_and_resumed(store))}
            series = sample(cases, rounds, lambda: None)
    rows = [
        _timed("without a store", series["none"]),
        _timed("with a store in SQLite", series["store"], PAUSE_TARGET_US),
    ]
    return Section("a run that pauses for an approval and resumes, no SDK", rows)


def _paused_and_resumed(store: PendingStore | None) -> Callable[[], None]:
    client = ChatClient(PayingModel(), tools=[pay], pending_store=store)

    def pause_and_resume() -> None:
        paused = client.prompt("Pay 5 EUR.").call()
        assert paused.state is not None
        resumed = client.resume(paused.state, {"call_1": Approve(by="ana")}).call()
        assert resumed.stop_reason == "answered", resumed

    return pause_and_resume


def _streaming_section(rounds: int, providers: Sdk, runner: asyncio.Runner) -> Section:
    """Return the cost of a chunk that a server sends over HTTP, on asyncio, in the thread of the event loop."""
    pieces = openai_events({"content": "tokens "}, CHUNKS)
    with ExitStack() as stack:
        server = stack.enter_context(ReplayServer(lambda request: Reply(pieces, content_type="text/event-stream")))
        model = OpenAIChatModel("m", base_url=server.url)
        client = httpx.AsyncClient(limits=httpx.Limits(max_connections=None))
        stack.callback(lambda: runner.run(_closed(model, client)))
        spec = ChatClient(model, telemetry=providers.options).prompt("?", tool_calling=False)

        async def read_stream() -> None:
            async with spec.astream() as stream:
                async for _ in stream:
                    pass

        async def read_events() -> None:
            async with client.stream("POST", server.url) as response:
                async for _ in EventSource(response).aiter_sse():
                    pass

        cases = dict(_at_once(runner, {"ours": read_stream, "floor": read_events}))
        series = sample(cases, rounds, providers.flush)
    rows = []
    for count in STREAMS:
        ours, floor = series[f"ours {count}"], series[f"floor {count}"]
        rows.append(_timed(f"{count} at once, everything on", ours))
        rows.append(_timed(f"{count} at once, with httpx and httpx-sse alone", floor))
        rows.append(Row("everything on / that", ours.ratio(floor), "x", digits=2))
    return Section(f"one of {CHUNKS} chunks of a stream over HTTP", rows)


def _at_once(
    runner: asyncio.Runner, readers: Mapping[str, Callable[[], Coroutine[Any, Any, None]]]
) -> Iterator[tuple[str, Case]]:
    async def gather(reader: Callable[[], Coroutine[Any, Any, None]], count: int) -> None:
        await asyncio.gather(*(reader() for _ in range(count)))

    def run(reader: Callable[[], Coroutine[Any, Any, None]], count: int) -> None:
        runner.run(gather(reader, count))

    for name, reader in readers.items():
        for count in STREAMS:
            yield f"{name} {count}", Case(partial(run, reader, count), count * CHUNKS)


async def _closed(model: OpenAIChatModel, client: httpx.AsyncClient) -> None:
    await model.aclose()
    await client.aclose()
