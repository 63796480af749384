"""The outcomes that a scenario produces: each a named unit that can be left out, with the metric that shows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from traced_tools.advisors.approval import ApprovalAdvisor
from traced_tools.audit.advisor import AuditAdvisor
from traced_tools.audit.trail import AuditTrail
from traced_tools.client import ChatClient
from traced_tools.core.approval import Approve, Reject
from traced_tools.core.enums import StopReason
from traced_tools.core.limits import LoopLimits
from traced_tools.core.messages import AssistantMessage, ToolCall, Usage
from traced_tools.core.tool_errors import ToolErrors
from traced_tools.demo.scenario import tools
from traced_tools.demo.scenario.advisors import (
    BrokenMemory,
    BudgetPolicy,
    Cache,
    PrivacyPolicy,
    Referee,
    SlowMemory,
    SlowRedactor,
)
from traced_tools.demo.scenario.models import LARGE, LOCAL, REASONING, SMALL, TimedChatModel
from traced_tools.demo.scenario.stage import AGENTS, VERSION, ScenarioRun
from traced_tools.errors import ModelError, RateLimited, ToolExecutionError
from traced_tools.loop.tool_calling import ToolCallingAdvisor
from traced_tools.models.base import ChatResponse
from traced_tools.observe import names
from traced_tools.observe.content import ContentCapture
from traced_tools.observe.names.registry_types import Metric
from traced_tools.policy.advisor import PolicyAdvisor
from traced_tools.policy.policy import Policy
from traced_tools.policy.rule import Rule
from traced_tools.request_spec import ChatClientRequestSpec
from traced_tools.search import RegexToolIndex
from traced_tools.search.advisor import ToolSearchToolCallingAdvisor
from traced_tools.testing.reply import Reply
from traced_tools.tools.approval import ApprovalRequest
from traced_tools.tools.batch import ExecuteTools
from traced_tools.tools.manager import ToolCallingManager

_CITIES: Final = ("Lisbon", "Oslo", "Vienna", "Porto", "Turin")
_AUDIT_KEY: Final = b"a key for invented records"
RESEARCHER: Final = "researcher"
"""The agent that runs inside a tool of another agent."""
NEW_VERSION: Final = "2.1"
"""The version of runs of a new version of an agent."""
BOOKKEEPER: Final = "bookkeeper"
"""The agent whose calls are audited, all of them."""


@dataclass(frozen=True)
class OutcomeSeries:
    """The metric series that exist, with a value above 0, if and only if an outcome has occurred.

    Attributes:
        metric: the metric.
        labels: labels that the series have, among others.
    """

    metric: Metric
    labels: Mapping[str, str | int]

    def __str__(self) -> str:
        labels = ", ".join(f'{name}="{value}"' for name, value in self.labels.items())
        return f"{self.metric.name}{{{labels}}}" if labels else self.metric.name


@dataclass(frozen=True)
class Outcome:
    """A kind of run, such as a run whose tool times out.

    Attributes:
        name: identifies the outcome; names don't change between releases.
        brief: what happens, as a sentence.
        share: how many runs of each round have this outcome.
        signal: the metric that shows the outcome.
        play: makes a run have the outcome, and raises an `AssertionError` if the run ends in another way.
    """

    name: str
    brief: str
    share: int
    signal: OutcomeSeries
    play: Callable[[ScenarioRun], None]


OUTCOMES: Final[dict[str, Outcome]] = {}
"""Every outcome by its name, in the order in which tables list them."""


def _outcome(
    metric: Metric, labels: Mapping[str, str | int], *, share: int = 1
) -> Callable[[Callable[[ScenarioRun], None]], Callable[[ScenarioRun], None]]:
    """Register the decorated function as the outcome with its name; its docstring is the brief."""

    def register(play: Callable[[ScenarioRun], None]) -> Callable[[ScenarioRun], None]:
        OUTCOMES[play.__name__] = Outcome(play.__name__, play.__doc__ or "", share, OutcomeSeries(metric, labels), play)
        return play

    return register


def _error(kind: type[Exception]) -> str:
    """Return the `error.type` of an error class."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


# Runs that answer.


@_outcome(names.EXECUTE_TOOL_DURATION, {names.TOOL_NAME: "get_weather"}, share=40)
def answered(run: ScenarioRun) -> None:
    """A run answers after one to four iterations, with one to three tool calls in each."""
    cities = [run.random.choice(_CITIES) for _ in range(run.random.randint(0, 3))]
    calls = [
        [run.asks(tool, city=city) for tool in ("get_weather", "search_flights", "find_hotels")[: 1 + index % 3]]
        for index, city in enumerate(cities)
    ]
    turns = [*calls, "Fly on Friday and stay for two nights."]
    agent, model = run.random.choice(list(zip(AGENTS, (LARGE, SMALL, LARGE), strict=True)))
    offered = [tools.get_weather, tools.search_flights, tools.find_hotels]
    run.ends(run.prompt(turns, agent=agent, model=model, tools=offered), "answered")


@_outcome(names.INFERENCE_TIME_TO_FIRST_CHUNK, {names.REQUEST_MODEL: REASONING}, share=2)
def slow_first_chunk(run: ScenarioRun) -> None:
    """A streamed answer begins late, because its model reasons first."""
    run.mode = run.random.choice(("stream", "astream"))
    spec = run.prompt(["Let me think. Take the night train."], model=REASONING, seconds=run.seconds(0.15))
    run.ends(spec, "answered")


@_outcome(names.UNPRICED_TOKENS, {names.REQUEST_MODEL: LOCAL}, share=2)
def unpriced_model(run: ScenarioRun) -> None:
    """A model that the price table does not know answers, sometimes with the first half of an answer."""
    reason = run.random.choice(("stop", "length"))
    answer = ChatResponse(AssistantMessage("It is open until"), finish_reason=reason, model=LOCAL)
    run.ends(run.prompt([answer], agent=AGENTS[1], model=LOCAL), "answered")


@_outcome(names.INFERENCE_DURATION, {names.RESPONSE_MODEL: "demo-large-older"})
def other_model(run: ScenarioRun) -> None:
    """Another model answers than the run requested."""
    answer = ChatResponse(AssistantMessage("Yes."), finish_reason="stop", model="demo-large-older")
    run.ends(run.prompt([answer], model=LARGE), "answered")


@_outcome(names.EMBEDDINGS_DURATION, {names.OPERATION_NAME: names.EMBEDDINGS}, share=2)
def embeddings(run: ScenarioRun) -> None:
    """A tool embeds texts to search documents."""
    turns = [run.asks("search_documents"), "Page 4 says so."]
    run.ends(run.prompt(turns, agent=AGENTS[2], tools=[tools.search_documents]), "answered")


@_outcome(names.INVOKE_AGENT_DURATION, {names.AGENT_NAME: RESEARCHER}, share=2)
def sub_agent(run: ScenarioRun) -> None:
    """A tool runs another agent, with another model."""
    model = TimedChatModel(
        ["The museum is closed on Mondays."], usage=[Usage(input_tokens=120, output_tokens=18)], model=SMALL,
        seconds=run.seconds(),
    )  # fmt: skip

    def research(question: str) -> str:
        """Research a question."""
        client = ChatClient(model, name=RESEARCHER, version=VERSION, telemetry=run.stage.telemetry)
        return client.prompt(question).call().content

    run.ends(run.prompt([ToolCall("research", {"question": "When?"}), "On Tuesday."], tools=[research]), "answered")


@_outcome(names.EXECUTE_TOOL_DURATION, {names.TOOL_NAME: "draw_map"})
def image_result(run: ScenarioRun) -> None:
    """A tool returns an image."""
    run.ends(run.prompt([run.asks("draw_map"), "Here is the map."], tools=[tools.draw_map]), "answered")


@_outcome(names.EXECUTE_TOOL_DURATION, {names.TOOL_NAME: "read_log"})
def cut_result(run: ScenarioRun) -> None:
    """The result of a tool is longer than the model may read, and is cut."""
    loop = ToolCallingAdvisor(ToolCallingManager(max_result_characters=2000))
    turns = [run.asks("read_log"), "The log ends early."]
    run.ends(run.prompt(turns, tools=[tools.read_log], tool_calling_advisor=loop), "answered")


@_outcome(names.MCP_CLIENT_DURATION, {names.TOOL_SOURCE: tools.FILES}, share=3)
def mcp_tools(run: ScenarioRun) -> None:
    """A tool of an MCP server answers, and another one fails."""
    turns = [run.asks("read_file"), run.asks("write_file"), "The disk is full."]
    run.ends(run.prompt(turns, agent=AGENTS[2], tools=tools.files_of_a_server()), "answered")


@_outcome(names.TOOL_SEARCHES, {}, share=2)
def tool_search(run: ScenarioRun) -> None:
    """The model searches for a tool, and calls what it has found."""
    turns = [ToolCall("search_tools", {"query": "hotel"}), run.asks("find_hotels", city="Oslo"), "There are two."]
    offered = [tools.get_weather, tools.search_flights, tools.find_hotels, *tools.files_of_a_server()]
    search = ToolSearchToolCallingAdvisor(index=RegexToolIndex())
    run.ends(run.prompt(turns, tools=offered, tool_calling_advisor=search), "answered")


@_outcome(names.TOOL_DECISIONS, {names.TOOL_DECISION: "answered"})
def cached_result(run: ScenarioRun) -> None:
    """An advisor answers a call without running the tool."""
    turns = [run.asks("check_stock"), "It is in stock."]
    run.ends(run.prompt(turns, agent=AGENTS[1], tools=[tools.check_stock], advisors=[Cache()]), "answered")


@_outcome(names.ADVISOR_DURATION, {names.ADVISOR_NAME: SlowMemory.name})
def slow_hook(run: ScenarioRun) -> None:
    """An advisor's hook takes longer than a tenth of a second."""
    run.ends(run.prompt(["As you said in May."], advisors=[SlowMemory(0.1 + run.seconds())]), "answered")


@_outcome(names.ADVISOR_DURATION, {names.ADVISOR_NAME: SlowRedactor.name}, share=2)
def slow_chunks(run: ScenarioRun) -> None:
    """An advisor takes long for each chunk of a streamed answer."""
    run.mode = "stream"  # on asyncio, the advisor would hold up all runs
    spec = run.prompt(["The museum opens at ten."], advisors=[SlowRedactor(run.seconds(0.1))])
    run.ends(spec, "answered")


@_outcome(names.LOOP_ITERATIONS_METRIC, {names.AGENT_VERSION: NEW_VERSION}, share=8)
def new_version(run: ScenarioRun) -> None:
    """A new version of an agent takes more iterations, and its policy refuses a call."""
    cities = [run.random.choice(_CITIES) for _ in range(run.random.randint(3, 5))]
    calls = [[run.asks(tool, city=city) for tool in ("search_flights", "find_hotels")] for city in cities]
    turns = [*calls, run.asks("book_train"), "Book the train yourself."]
    policy = PolicyAdvisor(Policy([Rule("no_bookings", then="deny", tool=["book_train"])], default="allow"))
    offered = [tools.search_flights, tools.find_hotels, tools.book_train]
    spec = run.prompt(turns, version=NEW_VERSION, tools=offered, advisors=[policy])
    run.ends(spec, "answered")


# Tools that fail, and calls that are refused.


@_outcome(names.EXECUTE_TOOL_DURATION, {names.TOOL_NAME: "check_stock", names.ERROR_TYPE: "ConnectionError"}, share=3)
def tool_error(run: ScenarioRun) -> None:
    """A tool raises an error, which the model reads."""
    turns = [run.asks("check_stock"), "The warehouse does not answer."]
    run.ends(run.prompt(turns, agent=AGENTS[1], tools=[tools.check_stock]), "answered")


@_outcome(names.TOOL_RETRIES, {names.TOOL_NAME: "get_exchange_rate"})
def tool_retry(run: ScenarioRun) -> None:
    """A tool fails, is retried, and succeeds."""
    turns = [run.asks("get_exchange_rate"), "1.09 dollars."]
    run.ends(run.prompt(turns, tools=[tools.ExchangeRates()]), "answered")


@_outcome(names.EXECUTE_TOOL_DURATION, {names.TOOL_NAME: "ask_supplier", names.ERROR_TYPE: names.TIMEOUT}, share=2)
def tool_timeout(run: ScenarioRun) -> None:
    """A tool exceeds its time-out and is cancelled."""
    turns = [run.asks("ask_supplier"), "The supplier does not answer."]
    run.ends(run.prompt(turns, agent=AGENTS[1], tools=[tools.ask_supplier]), "answered")


@_outcome(names.TOOL_LATE_RESULTS, {names.TOOL_NAME: "run_report"})
def late_result(run: ScenarioRun) -> None:
    """A blocking tool exceeds its time-out, and its result arrives later."""
    seconds, reports = round(run.seconds(), 4), tools.Reports()
    turns = [ToolCall("run_report", {"seconds": seconds}), "The report is late."]
    try:
        run.ends(run.prompt(turns, agent=AGENTS[2], tools=[reports]), "answered")
    finally:
        reports.run_ended.set()
    time.sleep(seconds + 0.05)  # until the tool has returned, because nothing else waits for it


@_outcome(
    names.TOOL_DECISIONS, {names.ADVISOR_NAME: BudgetPolicy.name, names.REASON_CODE: "over_budget"}, share=2
)  # fmt: skip
def denied_by_spending_policy(run: ScenarioRun) -> None:
    """An advisor refuses a call with a reason code."""
    turns = [run.asks("book_hotel"), "Please book it yourself."]
    run.ends(run.prompt(turns, tools=[tools.book_hotel], advisors=[BudgetPolicy()]), "answered")


@_outcome(
    names.TOOL_DECISIONS, {names.ADVISOR_NAME: PrivacyPolicy.name, names.REASON_CODE: "personal_data"}
)  # fmt: skip
def denied_by_privacy_policy(run: ScenarioRun) -> None:
    """Another advisor refuses a call with another reason code."""
    turns = [run.asks("read_customer"), "I may not read that."]
    spec = run.prompt(turns, agent=AGENTS[2], tools=[tools.read_customer], advisors=[PrivacyPolicy()])
    run.ends(spec, "answered")


@_outcome(names.POLICY_EVALUATIONS, {names.EVALUATED_DECISION: "deny", names.EVALUATED_CODE: "no-hotels"})
def denied_if_enforced(run: ScenarioRun) -> None:
    """A call runs that a policy would deny, which is only evaluated."""
    policy = Policy([Rule("no-hotels", tool="find_hotels", then="deny")], default="allow")
    turns = [run.asks("find_hotels", city=run.random.choice(_CITIES)), "There is room at the inn."]
    spec = run.prompt(turns, tools=[tools.find_hotels], advisors=[PolicyAdvisor(policy, evaluate_only=True)])
    run.ends(spec, "answered")


@_outcome(names.TOOL_DECISIONS, {names.TOOL_DECISION: "approved"}, share=2)
def approved(run: ScenarioRun) -> None:
    """A person approves a call while its run waits."""
    _ask(run, Approve(by="support-lead"))


@_outcome(names.TOOL_DECISIONS, {names.TOOL_DECISION: "rejected"})
def rejected(run: ScenarioRun) -> None:
    """A person rejects a call while its run waits."""
    _ask(run, Reject("not this month", by="support-lead", code="over_limit"))


def _ask(run: ScenarioRun, answer: Approve | Reject) -> None:
    """Ask a person about a call, who takes a while to answer."""

    def ask(request: ApprovalRequest) -> Approve | Reject:
        time.sleep(run.seconds())
        return answer

    turns = [run.asks("refund"), "That is settled."]
    spec = run.prompt(turns, agent=AGENTS[2], tools=[tools.refund], advisors=[ApprovalAdvisor(ask)])
    run.ends(spec, "answered")


@_outcome(names.TOOL_DECISIONS, {names.REASON_CODE: "too_late"})
def denied_by_person(run: ScenarioRun) -> None:
    """A person who drives a run refuses a call."""
    turns = [run.asks("refund").replace(id="call_1"), "That is settled."]
    driven = run.prompt(turns, agent=AGENTS[2], tools=[tools.refund]).start()
    while step := driven.next():
        if isinstance(step, ExecuteTools):
            step.deny("call_1", "not this month", code="too_late", by="support-lead")
        driven.perform(step)


@_outcome(names.TOOL_DECISIONS, {names.TOOL_DECISION: "unknown_tool"})
def unknown_tool(run: ScenarioRun) -> None:
    """The model calls a tool that does not exist."""
    run.ends(run.prompt([run.asks("invented_tool"), "I cannot do that."], agent=AGENTS[1]), "answered")


@_outcome(names.TOOL_DECISIONS, {names.TOOL_DECISION: "invalid_arguments"}, share=2)
def invalid_arguments(run: ScenarioRun) -> None:
    """The model calls a tool with arguments that its schema forbids, then with valid ones."""
    calls = [ToolCall("convert_units", {"amount": "many"}), ToolCall("convert_units", {"amount": 3.0})]
    run.ends(run.prompt([*calls, "7.62 cm."], agent=AGENTS[1], tools=[tools.convert_units]), "answered")


# The other stop reasons.


@_outcome(names.LOOP_ITERATIONS_METRIC, {names.LOOP_STOP_REASON: "return_direct"})
def return_direct(run: ScenarioRun) -> None:
    """The result of a tool is the answer of the run."""
    run.ends(run.prompt([run.asks("print_itinerary")], tools=[tools.print_itinerary]), "return_direct")


@_outcome(names.LOOP_ITERATIONS_METRIC, {names.LOOP_STOP_REASON: "max_iterations"}, share=2)
def max_iterations(run: ScenarioRun) -> None:
    """A run reaches its limit of iterations."""
    _run_to_limit(run, LoopLimits(max_iterations=3), "max_iterations")


@_outcome(names.LOOP_ITERATIONS_METRIC, {names.LOOP_STOP_REASON: "max_tool_calls"})
def max_tool_calls(run: ScenarioRun) -> None:
    """A run reaches its limit of tool calls."""
    _run_to_limit(run, LoopLimits(max_tool_calls=2), "max_tool_calls")


@_outcome(names.LOOP_ITERATIONS_METRIC, {names.LOOP_STOP_REASON: "max_calls_per_tool"})
def max_calls_per_tool(run: ScenarioRun) -> None:
    """A run reaches its limit of calls of one tool."""
    _run_to_limit(run, LoopLimits(max_calls_per_tool=2), "max_calls_per_tool")


@_outcome(names.LOOP_ITERATIONS_METRIC, {names.LOOP_STOP_REASON: "token_budget"})
def token_budget(run: ScenarioRun) -> None:
    """A run uses up its tokens."""
    _run_to_limit(run, LoopLimits(max_tokens=100), "token_budget")


@_outcome(names.LOOP_ITERATIONS_METRIC, {names.LOOP_STOP_REASON: "deadline"})
def deadline(run: ScenarioRun) -> None:
    """A run uses up its time: the tool takes longer than it has, on a busy machine as well."""
    turns = [ToolCall("poll_status", {"seconds": 0.15}), "I found nothing more."]
    limits = LoopLimits(max_seconds=0.1)
    run.ends(run.prompt(turns, agent=AGENTS[1], tools=[tools.poll_status], limits=limits), "deadline")


def _run_to_limit(run: ScenarioRun, limits: LoopLimits, reason: StopReason) -> None:
    """Run an agent that calls a tool with other arguments each time until a limit ends the run."""
    calls = [run.asks("poll_status") for _ in range(4)]
    turns = [(lambda request, call=call: call if request.tools else "I found nothing more.") for call in calls]
    spec = run.prompt(turns, agent=AGENTS[1], tools=[tools.poll_status], limits=limits)
    run.ends(spec, reason)


@_outcome(names.LOOP_ITERATIONS_METRIC, {names.LOOP_STOP_REASON: "repeated_call"}, share=2)
def repeated_call(run: ScenarioRun) -> None:
    """A run calls the same tool with the same arguments until the limit of identical calls ends it."""
    call = run.asks("poll_status")
    turns = [call, call, call, call, "It is still pending."]
    run.ends(run.prompt(turns, agent=AGENTS[1], tools=[tools.poll_status]), "repeated_call")


@_outcome(names.LOOP_ITERATIONS_METRIC, {names.LOOP_STOP_REASON: "consecutive_errors"})
def consecutive_errors(run: ScenarioRun) -> None:
    """Two iterations in a row in which every call fails end a run."""
    turns = [run.asks("charge_card"), run.asks("charge_card"), "The card is rejected."]
    limits = LoopLimits(max_consecutive_errors=2)
    run.ends(run.prompt(turns, agent=AGENTS[1], tools=[tools.charge_card], limits=limits), "consecutive_errors")


@_outcome(names.LOOP_ITERATIONS_METRIC, {names.LOOP_STOP_REASON: "awaiting_approval"})
def awaiting_approval(run: ScenarioRun) -> None:
    """Nobody can decide about a call, and the run ends."""
    run.ends(run.prompt([run.asks("refund")], agent=AGENTS[2], tools=[tools.refund]), "awaiting_approval")


@_outcome(names.LOOP_ITERATIONS_METRIC, {names.LOOP_STOP_REASON: "awaiting_input"})
def awaiting_input(run: ScenarioRun) -> None:
    """A tool asks for input, no person can answer, and the run ends."""
    run.ends(run.prompt([run.asks("send_parcel")], agent=AGENTS[2], tools=[tools.send_parcel]), "awaiting_input")


@_outcome(names.LOOP_ITERATIONS_METRIC, {names.LOOP_STOP_REASON: "advisor"})
def ended_by_advisor(run: ScenarioRun) -> None:
    """An advisor ends the run with the result of a call."""
    spec = run.prompt([run.asks("print_note")], tools=[tools.print_note], advisors=[Referee()])
    run.ends(spec, "advisor")


@_outcome(
    names.LOOP_ITERATIONS_METRIC, {names.LOOP_STOP_REASON: "cancelled", names.AGENT_NAME: AGENTS[2]}, share=2
)  # fmt: skip
def cancelled(run: ScenarioRun) -> None:
    """The application cancels a run."""
    spec = run.prompt(["This is never read."], agent=AGENTS[2], seconds=run.seconds())
    driven = spec.start()
    while step := driven.next():
        driven.cancel()
        driven.perform(step)


@_outcome(
    names.LOOP_ITERATIONS_METRIC, {names.LOOP_STOP_REASON: "cancelled", names.AGENT_NAME: AGENTS[1]}, share=2
)  # fmt: skip
def abandoned_stream(run: ScenarioRun) -> None:
    """A visitor closes a stream after its first chunk."""
    run.mode = run.random.choice(("stream", "astream"))
    spec = run.prompt(["This is a long answer that the visitor does not read."], agent=AGENTS[1])
    if run.is_async:
        run.stage.perform(_first_chunk(spec))
        return
    with spec.stream() as stream:
        next(stream)


async def _first_chunk(spec: ChatClientRequestSpec) -> None:
    async with spec.astream() as stream:
        await anext(stream)


# Models, advisors, telemetry and audit trails that fail.


@_outcome(names.MODEL_RETRIES, {names.RESPONSE_STATUS: 429}, share=2)
def rate_limited(run: ScenarioRun) -> None:
    """A provider rejects a request with HTTP 429 and `Retry-After`, and answers when it is retried."""
    busy = Reply.json({"error": {"code": "rate_limit_exceeded"}}, 429, {"Retry-After": "0.02"})
    run.ends(run.prompt_over_http(busy, run.said("It works now.")), "answered")


@_outcome(names.INFERENCE_DURATION, {names.ERROR_TYPE: _error(RateLimited)})
def rate_limit_exhausted(run: ScenarioRun) -> None:
    """A provider rejects a request with HTTP 429 and asks for a longer delay than a run waits."""
    busy = Reply.json({"error": {"code": "rate_limit_exceeded"}}, 429, {"Retry-After": "3600"})
    run.fails(run.prompt_over_http(busy), RateLimited)


@_outcome(names.MODEL_RETRIES, {names.RESPONSE_STATUS: 503})
def provider_error(run: ScenarioRun) -> None:
    """A provider fails with HTTP 503, and answers when the request is retried."""
    broken = Reply.json({"error": {"code": "overloaded"}}, 503)
    run.ends(run.prompt_over_http(broken, run.said("It works now.")), "answered")


@_outcome(names.INFERENCE_DURATION, {names.ERROR_TYPE: _error(ModelError)})
def provider_down(run: ScenarioRun) -> None:
    """A provider fails with HTTP 500 as often as the request is retried, and the run fails."""
    run.fails(run.prompt_over_http(*[Reply.json({"error": {"code": "broken"}}, 500) for _ in range(3)]), ModelError)


@_outcome(names.INVOKE_AGENT_DURATION, {names.ERROR_TYPE: _error(ToolExecutionError)})
def run_failed_by_tool(run: ScenarioRun) -> None:
    """A tool raises an error that the error policy lets fail the run."""
    policy = ToolErrors(raise_on=(PermissionError,))
    spec = run.prompt([run.asks("charge_card")], agent=AGENTS[1], tools=[tools.charge_card], tool_errors=policy)
    run.fails(spec, ToolExecutionError)


@_outcome(names.ADVISOR_DURATION, {names.ADVISOR_NAME: BrokenMemory.name, names.ERROR_TYPE: "LookupError"})
def run_failed_by_advisor(run: ScenarioRun) -> None:
    """An advisor raises an error, and the run fails."""
    run.fails(run.prompt([], agent=AGENTS[2], advisors=[BrokenMemory()]), LookupError)


@_outcome(names.TELEMETRY_FAILURES, {})
def telemetry_failure(run: ScenarioRun) -> None:
    """A redactor raises, so the content of one run is dropped and counted; nothing of it is captured."""
    capture = ContentCapture("SPAN_ONLY", redact=_no_redaction)
    run.ends(run.prompt(["Yes."], telemetry=replace(run.stage.telemetry, capture=capture)), "answered")


def _no_redaction(name: str, value: object) -> object:
    raise RuntimeError("the redactor has no rules")


@_outcome(names.AUDIT_VERIFIED, {})
def audited(run: ScenarioRun) -> None:
    """An audit trail records a call and is verified."""
    with TemporaryDirectory(dir=run.stage.folder) as folder, _trail(run, Path(folder)) as trail:
        turns = [run.asks("write_note"), "I wrote it down."]
        spec = run.prompt(turns, agent=BOOKKEEPER, tools=[tools.write_note], advisors=[AuditAdvisor(trail)])
        run.ends(spec, "answered")
        trail.verify()


@_outcome(names.AUDIT_RECORDS, {names.AUDIT_RECORD: "gap"})
def audit_gap(run: ScenarioRun) -> None:
    """An audit trail cannot be written for a while: a call is denied, and the trail records a gap."""
    with TemporaryDirectory(dir=run.stage.folder) as folder, _trail(run, Path(folder, "missing"), 0.05) as trail:
        turns = [run.asks("delete_note"), "I may not delete it now."]
        spec = run.prompt(turns, agent=BOOKKEEPER, tools=[tools.delete_note], advisors=[AuditAdvisor(trail)])
        run.ends(spec, "answered")
        if run.stage.is_watched:
            time.sleep(run.random.uniform(1.0, 4.0))  # while the record of the denied call waits
        Path(folder, "missing").mkdir()
        trail.flush(5.0)


def _trail(run: ScenarioRun, folder: Path, timeout: float = 5.0) -> AuditTrail:
    return AuditTrail(folder / "audit.db", key=_AUDIT_KEY, timeout=timeout, telemetry=run.stage.telemetry)
