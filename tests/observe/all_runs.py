"""Runs that together emit everything in the telemetry registry."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.audit.mirrored import WAITING, one_of_each, rows_of
from tests.captured import Telemetry, total
from tests.modes import ALL_MODES, run
from tests.observe.embedders import Embedder, RemoteEmbedder
from tests.observe.memories import Remembering
from tests.observe.runs import USAGE, Broken, BrokenSampler, Failing, Guard, Outside, Remote, adds, scenario
from tests.sample_tools import add, direct, fail
from tests.waiting import PATIENCE
from traced_tools import (
    Advisor,
    ApprovalAdvisor,
    ApprovalRequest,
    Approve,
    AssistantMessage,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    EvaluationAdvisor,
    LoopLimits,
    MemoryAdvisor,
    Policy,
    PolicyAdvisor,
    Rule,
    SafeguardAdvisor,
    TelemetryOptions,
    ToolCall,
    ToolResult,
    ToolSearchToolCallingAdvisor,
    Usage,
    UserMessage,
    tool,
)
from traced_tools.audit.verifying.reporting import report_verification
from traced_tools.audit.writing import mirror
from traced_tools.core import Evaluation, ToolExecutionResult
from traced_tools.core.approval import ApprovalAnswer
from traced_tools.errors import InvalidResponse
from traced_tools.events import OtlpEventExporter
from traced_tools.loop import ToolCallingAdvisor
from traced_tools.mcp.scopes import (
    McpEndpoint,
    McpRequestScope,
    McpServerScope,
    count_omitted_server,
    count_omitted_tools,
)
from traced_tools.memory import InMemoryChatMemoryRepository, MessageWindowChatMemory
from traced_tools.models import ChatResponse, EmbeddingResponse, OpenAIChatModel, OpenAIEmbeddingModel, RateLimitedModel
from traced_tools.observe import Event, RunFinished, ToolStarted, names
from traced_tools.observe.export_stats import ExportStats
from traced_tools.observe.instruments import PendingCounts
from traced_tools.observe.providers import instruments_of
from traced_tools.observe.run_telemetry import RunTelemetry
from traced_tools.observe.scopes.durable_run import LifeMetrics
from traced_tools.run.context import RunContext
from traced_tools.search import RegexToolIndex, ToolMatch
from traced_tools.testing import ReplayServer, Reply, ScriptedChatModel
from traced_tools.tools import ExecuteTools, ToolCallingManager, ToolInvocation
from traced_tools.tools.invocation import CallNext

_EXPORTER = ExportStats("otlp.traces", "spans", 1)


class Prices:
    """Knows what one model costs."""

    def price(self, provider: str, model: str, usage: Usage) -> float | None:
        return 0.25 if model == "scripted" else None


class Reasoned(Advisor):
    """Sets the reasons of calls, answers one of them with a long text, and makes the arguments of another invalid."""

    name, order = "reasoned", 300

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        if call.name == "direct":
            return call.answered("cached " * 100_000)
        arguments = "[]" if call.name == "add" else call.arguments
        return await call_next(call.replace(arguments=arguments, intent="because " * 100))


class Late(Advisor):
    """Refuses a call after its tool has run."""

    name, order = "late", 400

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        await call_next(call)
        return call.denied("the result is withheld", code="rule-8")


class FailingEmbedder(Embedder):
    """Raises."""

    def call(self, texts: tuple[str, ...]) -> EmbeddingResponse:
        raise RuntimeError("no " * 1000)


def run_that_is_sent_again(telemetry: Telemetry) -> None:
    """Ask a provider that is busy at first, for words, with a limit of our own, and for vectors."""
    busy = Reply.json({}, 429, {"Retry-After": "0"})
    said = Reply.json({"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]})
    vectors = Reply.json({"data": [{"index": 0, "embedding": [1.0]}]})
    with ReplayServer([busy, said, busy, vectors]) as server:
        with OpenAIChatModel("m", base_url=server.url, retries=1) as model:
            limited = RateLimitedModel(model, requests_per_minute=10)
            run("call", ChatClient(limited, telemetry=telemetry.options).prompt("?"))
        with OpenAIEmbeddingModel("m", base_url=server.url, retries=1) as embedder:
            embedder.embed(["one"], telemetry=telemetry.options)


def run_of_a_stuck_tool(telemetry: Telemetry) -> None:
    """Run a tool that times out twice and then succeeds, and a tool with a result that is too long."""
    released = threading.Event()

    @tool(timeout=0.01, retries=1)
    def stuck() -> None:
        """Wait."""
        assert released.wait(PATIENCE)

    def talk() -> str:
        """Talk."""
        return "on and on " * 100_000

    model = ScriptedChatModel([[ToolCall("stuck", ""), ToolCall("talk", "")], "x"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("traced_tools.tools.retries.FIRST_PAUSE", 0.0)
        run("call", ChatClient(model, tools=[stuck, talk], telemetry=telemetry.options).prompt("?"))
    assert telemetry.metric(names.TOOL_LATE_RESULTS.name) == []
    released.set()
    deadline = time.monotonic() + PATIENCE
    while sum(total(point) for point in telemetry.metric(names.TOOL_LATE_RESULTS.name)) < 2:
        assert time.monotonic() < deadline


def run_with_guards(telemetry: Telemetry) -> None:
    """Run a tool, and refuse a denied call, an answered call and a call of an unknown tool."""
    model = ScriptedChatModel([[adds(1, 1), ToolCall("fail", ""), ToolCall("invented")], "x"])
    advisors = [Guard(), Outside()]
    client = ChatClient(model, tools=[add, fail], advisors=advisors, telemetry=telemetry.options)
    run("call", client.prompt("?"))


def run_with_a_person(telemetry: Telemetry) -> None:
    """Have a person approve of one call and refuse another."""
    calls = [ToolCall("add", {"a": 1, "b": 1}, id="1"), ToolCall("add", {"a": 2, "b": 2}, id="2")]
    client = ChatClient(ScriptedChatModel([calls, "x"]), tools=[add], telemetry=telemetry.options)
    driven = client.prompt("?").start()
    while step := driven.next():
        if isinstance(step, ExecuteTools):
            step.approve("1", by="ana")
            step.deny("2", "no", code="rule-7", by="ana")
        driven.perform(step)


class Absent(Advisor):
    """Fails when asked."""

    name, order = "absent", 400

    async def decide_approval(self, request: ApprovalRequest) -> ApprovalAnswer:
        raise LookupError("nobody is there")


def run_that_asks_for_approval(telemetry: Telemetry) -> None:
    """Ask for approval of a call, and fail to ask for approval of another."""

    @tool(requires_approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    asking = ApprovalAdvisor(lambda request: Approve(by="ana", code="ticket"))
    for advisor in (asking, Absent()):
        model = ScriptedChatModel([ToolCall("pay"), "x"])
        client = ChatClient(model, tools=[pay], advisors=[advisor], telemetry=telemetry.options)
        with suppress(LookupError):
            run("call", client.prompt("?", conversation_id="c-4"))


class BrokenIndex(RegexToolIndex):
    """Fails to search."""

    def search(self, query: str, max_results: int = 5) -> list[ToolMatch]:
        raise RuntimeError("no " * 1000)


def runs_that_search_tools(telemetry: Telemetry) -> None:
    """Search tools with a query that is too long, call tools that were found and not found, and fail to search."""
    looks = ToolCall("search_tools", {"query": "add numbers " * 100})
    for index in (RegexToolIndex(), BrokenIndex()):
        model = ScriptedChatModel([looks, [adds(1, 1), ToolCall("fail", "")], "x"])
        client = ChatClient(
            model,
            tools=[add, fail, direct],
            advisors=[ToolSearchToolCallingAdvisor(index=index)],
            telemetry=telemetry.options,
        )
        run("call", client.prompt("?", conversation_id="c-8"))


def run_with_a_policy(telemetry: Telemetry) -> None:
    """Have a policy allow one call and deny another, and a policy that is only evaluated decide otherwise."""
    policy = Policy([Rule("small", tool="add", then="allow"), Rule("no-failures", tool="fail", then="deny")])
    other = Policy([Rule("no-sums", tool="add", then="deny"), Rule("failures", tool="fail", then="allow")])
    client = ChatClient(
        ScriptedChatModel([[adds(1, 1), ToolCall("fail")], "x"]),
        tools=[add, fail],
        advisors=[PolicyAdvisor(policy), PolicyAdvisor(other, evaluate_only=True)],
        telemetry=telemetry.options,
    )
    run("call", client.prompt("?", conversation_id="c-9"))


def run_with_a_result_withheld(telemetry: Telemetry) -> None:
    """Have an advisor refuse a call whose tool has run."""
    model = ScriptedChatModel([adds(1, 1), "x"])
    run("call", ChatClient(model, tools=[add], advisors=[Late()], telemetry=telemetry.options).prompt("?"))


def run_with_reasons(telemetry: Telemetry) -> None:
    """Run tools in a long conversation, with reasons and an advisor's answer that is too long."""
    long = "on and on " * 100
    calls = [ToolCall("fail", {"reason": long}), ToolCall("direct", {"text": long}), ToolCall("no " + long, long)]
    calls.append(adds(1, 1))
    model = ScriptedChatModel([calls, long], usage=USAGE)
    client = ChatClient(
        model, system=long, tools=[add, fail, direct], advisors=[Reasoned()], telemetry=telemetry.options
    )
    run("call", client.prompt(long, conversation_id="c-2"))


def runs_that_fail(telemetry: Telemetry) -> None:
    """Have a model fail at once and in the middle, an embedding, an advisor's hook, and the application's tracing."""
    failing = ScriptedChatModel([RuntimeError("no " * 1000)])
    with pytest.raises(RuntimeError):
        run("call", ChatClient(failing, telemetry=telemetry.options).prompt("?", conversation_id="c-3"))
    with pytest.raises(RuntimeError):
        run("stream", ChatClient(Failing(["one two"], usage=USAGE), telemetry=telemetry.options).prompt("?"))
    with pytest.raises(RuntimeError):
        FailingEmbedder().embed(["one"], telemetry=telemetry.options)
    broken = ChatClient(ScriptedChatModel([]), advisors=[Broken("advise")], telemetry=telemetry.options)
    with pytest.raises(LookupError):
        run("call", broken.prompt("?"))
    lost = TelemetryOptions(Telemetry(sampler=BrokenSampler()).tracer_provider, telemetry.meter_provider)
    run("call", ChatClient(ScriptedChatModel(["x"]), telemetry=lost).prompt("?"))


def run_of_an_answer_that_cannot_be_understood(telemetry: Telemetry) -> None:
    """Have a model promise calls, ask for none, and report what that took."""
    odd = ChatResponse(AssistantMessage(""), finish_reason="tool_call", usage=USAGE)
    with pytest.raises(InvalidResponse):
        run("call", ChatClient(Remote([odd]), telemetry=telemetry.options).prompt("?"))


def run_that_is_limited(telemetry: Telemetry) -> None:
    """Have a call refused because the tokens are spent."""
    model = ScriptedChatModel([adds(1, 1), "x"], usage=USAGE)
    client = ChatClient(model, tools=[add], limits=LoopLimits(max_tokens=5), telemetry=telemetry.options)
    run("call", client.prompt("?"))


def runs_that_are_judged(telemetry: Telemetry) -> None:
    """Have an answer judged and asked for again, a judge that fails, and a request and an answer that are blocked."""
    scores = iter([0.1, 1.0])

    def judge(response: ChatClientResponse) -> Evaluation:
        return Evaluation(next(scores), feedback="better " * 100)

    for turns, advisor, conversation in (
        (["bad", "good"], EvaluationAdvisor(judge), "c-4"),
        (["good"], EvaluationAdvisor(judge), "c-5"),
        (["a bad word"], SafeguardAdvisor(["bad"]), "c-6"),
        ([], SafeguardAdvisor(["?"], order=400), "c-7"),
    ):
        client = ChatClient(ScriptedChatModel(turns), advisors=[advisor], telemetry=telemetry.options)
        with suppress(RuntimeError):  # the scores have run out
            run("call", client.prompt("?", conversation_id=conversation))


def runs_of_the_scenario(telemetry: Telemetry) -> None:
    """Run the contract's scenario in each mode."""
    for mode in ALL_MODES:
        scenario(telemetry, mode)


def embed(telemetry: Telemetry) -> None:
    """Embed a text at a server."""
    RemoteEmbedder().embed(["one"], telemetry=telemetry.options)


def run_that_embeds(telemetry: Telemetry) -> None:
    """Run a tool that embeds a text."""

    def embed() -> str:
        """Embed."""
        return str(Embedder().embed(["one"]).model)

    model = ScriptedChatModel([ToolCall("embed"), "x"])
    run("call", ChatClient(model, tools=[embed], telemetry=telemetry.options).prompt("?"))


def run_that_remembers(telemetry: Telemetry) -> None:
    """Read, store and compact a conversation, with whatever may go wrong."""
    client = ChatClient(ScriptedChatModel(["x"]), advisors=[Remembering()], telemetry=telemetry.options)
    run("call", client.prompt("?", conversation_id="c-4"))


class Instructs(ToolCallingAdvisor):
    """A loop with a hook after the tools."""

    def next_instructions(
        self, request: ChatClientRequest, response: ChatClientResponse, result: ToolExecutionResult
    ) -> Any:
        return result.conversation_history


class Listens(Advisor):
    """Fails to listen to a chunk, and to the end of a run."""

    name, order = "listens", 400

    def on_chunk(self, chunk: ChatClientResponse) -> ChatClientResponse:
        if chunk.text:
            raise LookupError
        return chunk

    def on_event(self, event: Event) -> None:
        if isinstance(event, RunFinished):
            raise LookupError


def runs_with_late_hooks(telemetry: Telemetry) -> None:
    """Run the hooks after the tools, of a stream, of events, and of a conversation that resumes."""
    model = ScriptedChatModel([ToolCall("add", {"a": 1, "b": 1}), "x"])
    client = ChatClient(model, tools=[add], telemetry=telemetry.options, tool_calling_advisor=Instructs())
    run("call", client.prompt("?"))
    with suppress(LookupError):
        run("stream", client.replace(model=ScriptedChatModel(["x"]), advisors=[Listens()]).prompt("?"))
    memory = MemoryAdvisor(MessageWindowChatMemory(InMemoryChatMemoryRepository()), order=350)

    @tool(requires_approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    model = ScriptedChatModel([ToolCall("pay", id="1"), "x"])
    client = ChatClient(model, tools=[pay], advisors=[memory], telemetry=telemetry.options)
    waiting = client.prompt("?", conversation_id="c-5").call()
    assert waiting.state is not None
    client.resume(waiting.state, {"1": Approve()}).call()


def calls_by_hand(telemetry: Telemetry) -> None:
    """Perform calls without a loop: one that works, one that fails, one that is refused."""
    calls = [ToolCall("add", {"a": 1, "b": 1}, id="1"), ToolCall("fail", id="2"), ToolCall("invented", id="3")]
    answer = ChatResponse(AssistantMessage(calls))
    ToolCallingManager().execute_tool_calls([UserMessage("?")], answer, tools=[add, fail], telemetry=telemetry.options)


def requests_to_mcp_servers(telemetry: Telemetry) -> None:
    """Make the spans of requests; that real requests have them is shown in `tests/mcp`."""
    run_telemetry = RunTelemetry(telemetry.options, "travel")
    server = McpEndpoint("files", "tcp", "127.0.0.1", 8000)
    with McpRequestScope(run_telemetry, server, "tools/call", "read", 1, "2026-07-28") as scope:
        scope.refused(-32602)
    with McpRequestScope(run_telemetry, server, "initialize", None, 2, "2025-11-25") as scope:
        scope.refused(-32000)
    count_omitted_tools(run_telemetry, "files", "invalid", 2)
    count_omitted_tools(run_telemetry, "files", "limit", 5)
    count_omitted_server(run_telemetry, "search")


def requests_of_mcp_clients(telemetry: Telemetry) -> None:
    """Make the spans of requests to served tools; that real requests have them is shown in `tests/mcp`."""
    run_telemetry = RunTelemetry(telemetry.options, "shop")
    with McpServerScope(run_telemetry, "tcp", "tools/call", 1, "2026-07-28") as scope:
        scope.calls("price")
        scope.tool_failed()
    with McpServerScope(run_telemetry, "pipe", "tools/list", "a", "2025-11-25") as scope:
        scope.refused(-32602)


def export(telemetry: Telemetry) -> None:
    """Have an exporter count, as `configure` does; that the counts are right is shown in `test_collectors`."""
    instruments = instruments_of(telemetry.meter_provider)
    assert instruments is not None
    instruments.exports.show([_EXPORTER])


def export_events(telemetry: Telemetry) -> None:
    """Send typed events of a run on as log records."""
    happened = {"id": "e-1", "time": datetime.now(UTC), "run_id": "r-1", "sequence": 1, "agent": "travel"}
    call = {"call_id": "1", "tool": "add", "source": names.LOCAL, "batch_index": 0, "batch_size": 1}
    started = ToolStarted(**happened, **call, iteration=1, conversation_id="c-1")
    finished = RunFinished(**happened, iteration=0, stop_reason="answered", iterations=1, tool_calls=1, duration=0.1)
    OtlpEventExporter(telemetry.logger_provider).export([started, finished])


def audit(telemetry: Telemetry) -> None:
    """Mirror a trail's records and verify its store. The trail's own telemetry is tested in `tests/audit`."""
    mirror.mirror_records(rows_of(*one_of_each()), telemetry.options)
    mirror.watch_lag(WAITING.lag, telemetry.options)
    report_verification("audit.db", True, time.time(), telemetry.options)
    losses = mirror.CheckpointLosses(telemetry.options)
    losses.failed(OSError())
    losses.lost(1)
    assert mirror.flush(PATIENCE)


class Inbox:
    """Stands for a store in which calls wait."""

    def counts(self) -> list[PendingCounts]:
        return [PendingCounts("desk", 2, 90.0, 1, 30.0, {"tool_changed": 1}, {"waiting": 1}, {"waiting": 5.0})]


INBOX = Inbox()


def calls_that_wait_in_a_store(telemetry: Telemetry) -> None:
    """Report the calls in a store. The store itself is tested in `tests/approvals`."""
    instruments = RunTelemetry(telemetry.options, agent="").instruments
    assert instruments is not None
    instruments.pending_stores.watch(INBOX.counts)


def lives_of_a_run(telemetry: Telemetry) -> None:
    """Record lives of a durable run. The lives themselves are tested in `tests/durable`."""
    metrics = LifeMetrics(RunTelemetry(telemetry.options, agent="desk"))
    metrics.began("interrupted", 2.5)
    metrics.recorded(0.001)
    metrics.cut_call_answered()
    metrics.taken()
    metrics.ended("finished", 2)


RUNS: tuple[Callable[[Telemetry], None], ...] = (
    runs_of_the_scenario,
    run_with_guards,
    run_with_a_person,
    run_that_asks_for_approval,
    calls_that_wait_in_a_store,
    lives_of_a_run,
    runs_that_search_tools,
    run_with_a_policy,
    run_with_a_result_withheld,
    run_with_reasons,
    run_of_a_stuck_tool,
    embed,
    run_that_embeds,
    run_that_is_sent_again,
    runs_that_fail,
    run_of_an_answer_that_cannot_be_understood,
    run_that_is_limited,
    run_that_remembers,
    runs_with_late_hooks,
    runs_that_are_judged,
    calls_by_hand,
    requests_to_mcp_servers,
    requests_of_mcp_clients,
    export,
    export_events,
    audit,
)


def runs_of_everything(telemetry: Telemetry) -> None:
    """Emit every span, metric, event and attribute of the table that the options of `telemetry` let pass."""
    copy_context().run(_nested_runs, telemetry)


def _nested_runs(telemetry: Telemetry) -> None:
    """Run everything on behalf of somebody, inside a run that emits nothing."""
    with RunContext(agent="planner", principal="ana", telemetry=Telemetry().options):
        for each in RUNS:
            each(telemetry)
