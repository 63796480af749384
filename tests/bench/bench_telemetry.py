"""What the telemetry costs: each kind of span by itself, and of a whole run all that turning it on adds.

*Each kind of span* is opened and closed as the loop does it, under a span as in the loop, with the attributes and the
records it has there; `and events` is the same with a logger that takes its log events. Beside it stands what the bare
SDK takes to emit the very same, measured in two ways. *Replayed*: a real one was captured and is emitted again by hand,
as tersely as the SDK allows, from dictionaries made beforehand, without a clock and without a decision. *By
operations*: the spans, attributes and records it consists of, counted, each at the price of the SDK's operation that
makes it, as measured in the same rounds (see `operations`).

*A whole run* is two passes of the loop: in the first the model asks for two tools, in the second it answers. What its
telemetry costs is the time of the run with everything on less the time of the same run without an SDK: not the time
spent in some functions but all that the caller's thread pays more, with the scopes, the clocks, the labels, colder
caches and whatever else there is. It stands over the same two floors. Without the spans of hooks the run has the seven
spans of the whole run that is measured among the operations. That one has five attributes a span and nine records; ours
has more of both (hooks are recorded even where they have no span, calls count what is under way and what was decided),
so the floor by operations is that case as measured, plus what ours emits beyond it. Blocking, the tools run one after
the other in the caller's thread, so that its CPU clock sees them; on asyncio they run side by side.

A replay in a loop of its own has the processor's caches to itself, which no caller of the SDK has who does something
else between two spans. So there are two more figures. *In one piece in a run* is the terse replay, all of it in the
first model call of a run without an SDK, less that run. *Where it is called* is the time of the run with everything
on less that of the same run with providers that take everything and do nothing: the SDK's own part, in its places.
What remains of the whole is ours. This one would not show that we call the SDK more often than need be; the replays
show that.
"""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tests.bench.floor import Capture, Floor, capture_of
from tests.bench.operations import Operations, operations, priced, priced_as_run
from tests.bench.report import Row, Section
from tests.bench.silent import SilentMeterProvider, SilentTracerProvider
from tests.bench.timing import Case, Series, sample
from tests.bench.workload import NO_LIMITS, CountingModel, Sdk, add, repeated, sdk
from traced_tools import (
    AssistantMessage,
    ChatClient,
    ChatClientRequestSpec,
    TelemetryOptions,
    ToolCall,
    Usage,
    UserMessage,
    tool,
)
from traced_tools.core.enums import Detail
from traced_tools.core.options import NO_OPTIONS
from traced_tools.core.tool_result import ToolResult
from traced_tools.loop.exchange import ChatClientRequest, ChatClientResponse
from traced_tools.loop.tool_calling import ToolCallingAdvisor
from traced_tools.models import ChatModel, ChatRequest, ChatResponse, EmbeddingModel, EmbeddingResponse
from traced_tools.observe.observations import (
    observe_hook,
    observe_idle_hook,
    observe_iteration,
    observe_model_call,
    observe_run,
    observe_tool_call,
)
from traced_tools.observe.scopes.model_call import embeddings_scope
from traced_tools.run.context import RunContext
from traced_tools.tools import FunctionToolCallback
from traced_tools.tools.toolset import NO_TOOLS

TARGET = 1.0
ONE_RUN = {"invoke_agent": 1, "iteration": 2, "chat": 2, "execute_tool": 2}
SCOPES_A_CASE = 100
RUNS_A_CASE = 20
SILENT = (SilentTracerProvider(), SilentMeterProvider(), None)
USAGE = Usage(input_tokens=812, output_tokens=93)
ASKED = ToolCall("add", {"a": 41, "b": 1}, "call_1")
ADD = FunctionToolCallback(add)
LOOP = ToolCallingAdvisor()


class Embedder(EmbeddingModel):
    """Stands for a model; its answer is made beforehand."""

    provider, model = "bench", "bench-1"

    def call(self, texts: tuple[str, ...]) -> EmbeddingResponse:
        raise NotImplementedError("nothing is embedded here")


MODEL, EMBEDDER = CountingModel(1), Embedder()
ANSWER = ChatResponse(AssistantMessage("42"), usage=USAGE, finish_reason="stop", id="resp", model="bench-1")
EMBEDDED = EmbeddingResponse(((0.1, 0.2, 0.3),), usage=Usage(input_tokens=812), model="bench-1")
QUESTION = ChatClientRequest((UserMessage("What is 41 + 1?"),), NO_TOOLS, NO_OPTIONS, {}, 2, RunContext())
DONE = ChatClientResponse(QUESTION.run, ANSWER)
RAN = ToolResult("call_1", "add", "42", value=42, outcome="ok")
REFUSED = ToolResult("call_1", "add", "The call was not run: no.", decision="denied")


def _invoke_agent(run: RunContext) -> None:
    with observe_run(run, MODEL, QUESTION) as observed:
        _ = observed.trace_id
        observed.began(QUESTION)
        observed.answered(DONE)


def _iteration(run: RunContext) -> None:
    with observe_iteration(run, 2) as observed:
        observed.requested(1)


def _advise(run: RunContext) -> None:
    with observe_hook(run.telemetry, "advise", LOOP.name, LOOP.order, 0):
        pass


def _before(run: RunContext) -> None:
    with observe_hook(run.telemetry, "before", LOOP.name, LOOP.order, 2):
        pass


def _passed_by(run: RunContext) -> None:
    observe_idle_hook(run.telemetry, "before", LOOP.name, LOOP.order, 2)


def _chat(run: RunContext) -> None:
    with observe_model_call(run, MODEL, QUESTION) as observed:
        observed.answered(ANSWER, None)


def _embeddings(run: RunContext) -> None:
    with embeddings_scope(run.telemetry, EMBEDDER) as scope:
        scope.answered(EMBEDDED)


def _execute_tool(run: RunContext) -> None:
    queued = {"queued": 0.001, "may_refuse": False, "refused": False, "ledger": run.telemetry.ledger}
    with observe_tool_call(run, ASKED, ADD, 2, (0, 1), **queued) as observed:
        observed.repaired(())
        observed.started()
        observed.waited(0.0)
        observed.stopped()
        observed.finished(RAN)
        observed.decided(RAN)


def _refuse_tool(run: RunContext) -> None:
    queued = {"queued": 0.001, "may_refuse": False, "refused": True, "ledger": run.telemetry.ledger}
    with observe_tool_call(run, ASKED, ADD, 2, (0, 1), **queued) as observed:
        observed.repaired(())
        observed.decided(REFUSED)


KINDS: dict[str, Callable[[RunContext], None]] = {
    "invoke_agent": _invoke_agent,
    "iteration": _iteration,
    "hook: advise": _advise,
    "hook: before": _before,
    "hook: before, which nobody wrote": _passed_by,
    "chat": _chat,
    "embeddings": _embeddings,
    "execute_tool": _execute_tool,
    "refuse_tool": _refuse_tool,
}


@dataclass(frozen=True)
class Bench:
    """Providers for what is measured and for its floors, without and with a logger."""

    own: Sdk = field(default_factory=sdk)
    floor: Sdk = field(default_factory=sdk)
    own_events: Sdk = field(default_factory=partial(sdk, events=True))
    floor_events: Sdk = field(default_factory=partial(sdk, events=True))
    operations: Operations | None = field(default_factory=operations)

    def sample(self, cases: dict[str, Case], rounds: int) -> dict[str, Series]:
        """Time the cases and the operations, taking turns."""
        if self.operations is not None:
            cases |= dict(self.operations.cases())
        return sample(cases, rounds, self._flush)

    def _parts(self) -> Iterator[Sdk | Operations]:
        yield from (self.own, self.floor, self.own_events, self.floor_events)
        if self.operations is not None:
            yield self.operations

    def _flush(self) -> None:
        for part in self._parts():
            part.flush()

    def shutdown(self) -> None:
        """End all threads."""
        for part in self._parts():
            part.shutdown()


def telemetry_sections(rounds: int, runner: asyncio.Runner) -> list[Section]:
    """Return the cost of each kind of span, and of the telemetry of a whole run."""
    bench = Bench()
    sections = [kinds_section(bench, rounds), run_section(bench, rounds, runner)]
    bench.shutdown()
    return sections


def kinds_section(bench: Bench, rounds: int) -> Section:
    """Return what a span of each kind costs, with its records, beside the floors."""
    captured = {kind: _captured(emit) for kind, emit in KINDS.items()}
    cases: dict[str, Case] = {}
    for kind, emit in KINDS.items():
        cases[kind] = _opened(bench.own, emit)
        cases[f"{kind}, floor"] = _replayed(bench.floor, captured[kind])
        if (with_events := _captured(emit, events=True)).events:
            cases[f"{kind}, events"] = _opened(bench.own_events, emit)
            cases[f"{kind}, events, floor"] = _replayed(bench.floor_events, with_events)
    series = bench.sample(cases, rounds)
    rows = [row for kind in KINDS for row in _kind_rows(bench, kind, series, captured[kind])]
    return Section("one span of each kind, with its records", rows)


def _kind_rows(bench: Bench, kind: str, series: dict[str, Series], captured: Capture) -> Iterator[Row]:
    given = sum(len(span.start) + len(span.final) for span in captured.spans)
    yield _cost(f"{kind} ({given} attributes, {len(captured.records)} records)", series[kind])
    yield from _against("replayed with the bare SDK", series[kind], series[f"{kind}, floor"])
    if bench.operations is not None:
        yield from _against("by operations of the SDK", series[kind], priced(series, captured))
    if (with_events := series.get(f"{kind}, events")) is not None:
        yield _cost(f"{kind}, and events", with_events)
        yield from _against("replayed with the bare SDK", with_events, series[f"{kind}, events, floor"])


def _against(label: str, own: Series, floor: Series, at_most: float | None = None) -> Iterator[Row]:
    yield _cost(f"  {label}", floor)
    yield Row("  ours / that", own.ratio(floor), "x", at_most=at_most, digits=2)


def _cost(label: str, series: Series) -> Row:
    return Row(label, statistics.median(series.cpu), "us", statistics.median(series.wall), series.fastest)


def _run(options: TelemetryOptions) -> RunContext:
    return RunContext(telemetry=options)


def _captured(emit: Callable[[RunContext], None], *, events: bool = False) -> Capture:
    return capture_of(lambda options: emit(_run(options)), events=events)


def _opened(providers: Sdk, emit: Callable[[RunContext], None]) -> Case:
    scopes = repeated(partial(emit, _run(providers.options)), SCOPES_A_CASE)
    return Case(partial(under_a_span, providers, scopes), SCOPES_A_CASE)


def _replayed(providers: Sdk, captured: Capture) -> Case:
    floor = Floor(captured, providers)
    return Case(partial(floor.run, SCOPES_A_CASE), SCOPES_A_CASE)


def under_a_span(providers: Sdk, function: Callable[[], object]) -> None:
    """Call `function` under a span, as a run's scopes are."""
    with providers.tracer_provider.get_tracer("bench").start_as_current_span("run"):
        function()


class TwoTools(ChatModel):
    """Asks for two tools at once, then answers. Holds no state.

    Args:
        beforehand: called in the first blocking call of a run.
    """

    provider, model = "bench", "bench-1"

    def __init__(self, beforehand: Callable[[], None] | None = None) -> None:
        self._beforehand = beforehand
        calls = [ToolCall("add", {"a": index, "b": 1}, f"call_{index}") for index in range(2)]
        asking = AssistantMessage(calls)
        self._asking = ChatResponse(asking, usage=USAGE, finish_reason="tool_call", id="resp_0", model="bench-1")

    def call(self, request: ChatRequest) -> ChatResponse:
        """Return the response of this pass."""
        if self._beforehand is not None and len(request.messages) == 1:
            self._beforehand()
        return self._asking if len(request.messages) == 1 else ANSWER

    async def acall(self, request: ChatRequest) -> ChatResponse:
        """Return the response of this pass, on asyncio."""
        return self._asking if len(request.messages) == 1 else ANSWER


@tool(name="add", sequential=True)
def add_in_turn(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(name="add")
async def add_beside(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def _spec(telemetry: TelemetryOptions | None, function: Any, model: ChatModel | None = None) -> ChatClientRequestSpec:
    client = ChatClient(model or TwoTools(), tools=[function], limits=NO_LIMITS, telemetry=telemetry)
    return client.prompt("What is 41 + 1?")


def _run_blocking(telemetry: TelemetryOptions | None, model: ChatModel | None = None) -> Callable[[], object]:
    call = _spec(telemetry, add_in_turn, model).call
    assert len(call().tool_results) == 2
    return call


class WholeRun:
    """Times a run without an SDK and with everything on, and the floors of what is then emitted."""

    def __init__(self, bench: Bench, runner: asyncio.Runner) -> None:
        self._bench = bench
        self._runner = runner
        self.captured = {detail: self._capture(bench.own, detail) for detail in ("steps", "hooks")}
        self.captured["events"] = self._capture(bench.own_events, "hooks")

    def _capture(self, providers: Sdk, detail: Detail) -> Capture:
        events = providers.logger_provider is not None
        captured = capture_of(lambda options: _spec(replace(options, detail=detail), add_in_turn).call(), events=events)
        kinds = Counter(span.name.split()[0] for span in captured.spans)
        assert {kind: kinds[kind] for kind in ONE_RUN} == ONE_RUN, f"this is not the one run that is timed: {kinds}"
        return captured

    def cases(self) -> Iterator[tuple[str, Case]]:
        """Return what is to be timed."""
        yield "off", self._blocking(None)
        yield "async off", self._on_asyncio(None)
        for which in self.captured:
            events, detail = which == "events", "steps" if which == "steps" else "hooks"
            own, bare = (
                (self._bench.own_events, self._bench.floor_events) if events else (self._bench.own, self._bench.floor)
            )
            options = replace(own.options, detail=detail)
            floor = Floor(self.captured[which], bare)
            yield which, self._blocking(options)
            yield f"async {which}", self._on_asyncio(options)
            yield f"{which}, floor", Case(repeated(floor.replay, RUNS_A_CASE), RUNS_A_CASE)
            yield f"{which}, in one piece", self._blocking(None, TwoTools(floor.replay))
            if not events:
                yield f"{which}, silent", self._blocking(TelemetryOptions(*SILENT, detail=detail))

    def _blocking(self, telemetry: TelemetryOptions | None, model: ChatModel | None = None) -> Case:
        return Case(repeated(_run_blocking(telemetry, model), RUNS_A_CASE), RUNS_A_CASE)

    def _on_asyncio(self, telemetry: TelemetryOptions | None) -> Case:
        acall = _spec(telemetry, add_beside).acall

        async def loop() -> None:
            for _ in range(RUNS_A_CASE):
                await acall()

        return Case(lambda: self._runner.run(loop()), RUNS_A_CASE)


def run_section(bench: Bench, rounds: int, runner: asyncio.Runner) -> Section:
    """Return what turning telemetry on adds to a whole run, over what its telemetry costs with the bare SDK."""
    whole = WholeRun(bench, runner)
    series = bench.sample(dict(whole.cases()), rounds)
    rows = [_cost("blocking, no SDK", series["off"]), _cost("asyncio, no SDK", series["async off"])]
    for which, captured in whole.captured.items():
        rows += _run_rows(bench, which, series, captured)
    return Section("a run of two passes and two tools: what turning telemetry on adds", rows)


TITLES = {"steps": "without hook spans", "hooks": "with hook spans", "events": "with hook spans and events"}


def _run_rows(bench: Bench, which: str, series: dict[str, Series], captured: Capture) -> Iterator[Row]:
    counts = f"{len(captured.spans)} spans, {len(captured.records)} records"
    if captured.events:
        counts += f", {len(captured.events)} events"
    added = series[which].slope(series["off"], 1)
    yield _cost(f"blocking, {TITLES[which]} ({counts})", added)
    yield from _against("replayed with the bare SDK", added, series[f"{which}, floor"], TARGET)
    in_run = series[f"{which}, in one piece"].slope(series["off"], 1)
    yield from _against("replayed in one piece in a run", added, in_run, TARGET)
    if (silent := series.get(f"{which}, silent")) is not None:
        yield from _against("the SDK's own part, where it is called", added, series[which].slope(silent, 1), TARGET)
    if bench.operations is not None:
        yield from _against("by operations of the SDK", added, priced_as_run(series, captured), TARGET)
    yield _cost(f"asyncio, {TITLES[which]}", series[f"async {which}"].slope(series["async off"], 1))
