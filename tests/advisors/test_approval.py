"""Approval of tool calls: what is asked, what the answers do, and how a run ends that nobody answers."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.markers import MARKER
from tests.modes import ASYNC_MODES, MODES, arun, run
from tests.observe.closed_list import assert_consistent
from tests.waiting import PATIENCE, patiently, until
from traced_tools import (
    Advisor,
    ApprovalAdvisor,
    ApprovalRequest,
    Approve,
    AssistantMessage,
    ChatClient,
    ChatClientResponse,
    LoopLimits,
    Policy,
    PolicyAdvisor,
    Reject,
    Rule,
    ToolCall,
    ToolMessage,
    ToolResult,
    tool,
)
from traced_tools.core import ToolMetadata, Undecided
from traced_tools.core.approval import Denied
from traced_tools.flow import WorkerPool
from traced_tools.loop import ToolCallingAdvisor
from traced_tools.observe import names
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ExecuteTools, FunctionToolCallback, ToolCallingManager, ToolInvocation
from traced_tools.tools.invocation import CallNext

SENT: list[int] = []


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    SENT.append(amount)
    return f"paid {amount}"


@tool
def look() -> str:
    """Look."""
    return "seen"


@pytest.fixture(autouse=True)
def _fresh() -> None:
    SENT.clear()


def pays(amount: object = 5, id: str = "p") -> ToolCall:
    return ToolCall("pay", {"amount": amount}, id=id)


def client_of(*advisors: Advisor, turns: Any = None, **client: Any) -> ChatClient:
    model = ScriptedChatModel([pays(), "done"] if turns is None else turns)
    return ChatClient(model, **{"tools": [pay, look], "advisors": advisors, **client})


def played(mode: str, answer: object, *calls: ToolCall, advisors: Any = (), **client: Any) -> ChatClientResponse:
    """Run calls of a model that an advisor asks about; `answer` is the advisor, what it calls, or what it returns."""
    ask: Callable[[ApprovalRequest], Any] = answer if callable(answer) else lambda request: answer
    asking = answer if isinstance(answer, ApprovalAdvisor) else ApprovalAdvisor(ask)
    return run(mode, client_of(*advisors, asking, turns=[[*calls] or pays(), "done"], **client).prompt("?"))


@pytest.mark.parametrize("mode", MODES)
def test_an_approved_call_runs(mode: str) -> None:
    response = played(mode, Approve(by="ana", code="ticket"))
    [result] = response.tool_results
    assert (result.decision, result.by, result.reason_code, result.content) == ("approved", "ana", "ticket", "paid 5")
    assert response.stop_reason == "answered"


@pytest.mark.parametrize("mode", MODES)
def test_a_rejected_call_does_not_run_and_the_model_reads_why(mode: str) -> None:
    [result] = played(mode, Reject("too much", by="ana")).tool_results
    assert (result.decision, result.by, result.advisor) == ("rejected", "ana", "approval")
    assert "too much" in result.content
    assert not SENT


@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_nobody_decides_ends_the_run_and_keeps_the_other_results(mode: str) -> None:
    response = played(mode, Undecided(), ToolCall("look", {}, id="l"), pays())
    assert response.stop_reason == "awaiting_approval"
    [waits] = response.pending
    assert (waits.call_id, waits.tool, waits.args) == ("p", "pay", {"amount": 5})
    assert [each.call_id for each in response.tool_results] == ["l"]
    *_, answer, results = response.messages
    assert isinstance(answer, AssistantMessage)
    assert isinstance(results, ToolMessage)
    assert [each.call_id for each in results.results] == ["l"]


@pytest.mark.parametrize("mode", MODES)
def test_edited_arguments_are_validated_and_pass_the_policy_again(mode: str) -> None:
    small = Rule("small", then="require_approval", tool="pay", where=lambda args: args["amount"] < 10)
    policy = PolicyAdvisor(Policy([small]))
    [result] = played(mode, Approve(arguments={"amount": "7"}), advisors=[policy]).tool_results
    assert (result.decision, result.content, result.reason_code) == ("approved", "paid 7", "small")
    [result] = played(mode, Approve(arguments={"amount": 70}), advisors=[policy]).tool_results
    assert (result.decision, result.reason_code) == ("denied", "policy_default")
    [result] = played(mode, Approve(arguments={"amount": "much"}), advisors=[policy]).tool_results
    assert result.decision == "invalid_arguments"
    assert SENT == [7]


# Asking that fails.


def no_answer(*, is_async: bool) -> tuple[Callable[[ApprovalRequest], Any], threading.Event]:
    """Return a function that does not answer, and the event that ends it."""
    released = threading.Event()

    async def wait_on_the_loop(request: ApprovalRequest) -> None:
        await asyncio.Event().wait()

    return (wait_on_the_loop if is_async else lambda request: released.wait(PATIENCE)), released


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_a_call_is_denied_if_nobody_answers_in_time(mode: str, is_async: bool) -> None:
    ask, released = no_answer(is_async=is_async)
    [result] = played(mode, ApprovalAdvisor(ask, timeout=0.01)).tool_results
    released.set()
    assert (result.decision, result.reason_code, result.advisor) == ("denied", "approval_timeout", "approval")
    assert result.content == "The call was not run: nobody decided about it in time."
    assert not SENT


@pytest.mark.parametrize("mode", MODES)
def test_the_deadline_of_the_run_bounds_the_wait(mode: str) -> None:
    ask, released = no_answer(is_async=False)
    limits = LoopLimits(max_seconds=0.05)
    for timeout in (300, None):
        response = played(mode, ApprovalAdvisor(ask, timeout=timeout), limits=limits)
        assert [each.reason_code for each in response.tool_results] == ["approval_timeout"]
        assert response.stop_reason == "deadline"
    released.set()


def test_an_answer_after_the_time_out_is_logged_and_has_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    released = threading.Event()

    def ask(request: ApprovalRequest) -> Approve:
        assert released.wait(PATIENCE)
        return Approve(by=MARKER)

    with caplog.at_level(logging.WARNING, "traced_tools.advisors.approval"):
        played("call", ApprovalAdvisor(ask, timeout=0.01, name="slow"))
        late = "slow: an answer came after the time-out and has no effect: the call was denied"
        assert late not in caplog.messages
        released.set()
        until(lambda: late in caplog.messages)
    assert MARKER not in caplog.text
    assert not SENT


def raising(request: ApprovalRequest) -> Approve:
    raise LookupError(MARKER)


async def raising_async(request: ApprovalRequest) -> Approve:
    raise LookupError(MARKER)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("ask", "problem"),
    [
        (raising, "LookupError"),
        (raising_async, "LookupError"),
        (lambda request: MARKER, "it returned str, and must return an Approve, a Reject or an Undecided"),
        (lambda request: True, "it returned bool, and must return an Approve, a Reject or an Undecided"),
    ],
    ids=["raises", "raises async", "text", "bool"],
)
def test_a_call_is_denied_if_asking_fails_and_the_log_has_no_content(
    mode: str, ask: Any, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "traced_tools.advisors.approval"):
        [result] = played(mode, ask).tool_results
    assert (result.decision, result.reason_code, result.advisor) == ("denied", "approval_failed", "approval")
    assert caplog.messages == [f"approval: asking about a call of pay failed: {problem}; the call is denied"]
    assert MARKER not in result.content + caplog.text
    assert not SENT


@pytest.mark.parametrize("mode", MODES)
def test_an_async_function_may_ask_in_every_mode(mode: str) -> None:
    async def ask(request: ApprovalRequest) -> Approve:
        await asyncio.sleep(0)
        return Approve(by="ana")

    for timeout in (None, 300):
        [result] = played(mode, ApprovalAdvisor(ask, timeout=timeout)).tool_results
        assert (result.decision, result.by) == ("approved", "ana")


@pytest.mark.parametrize("timeout", [None, 300])
@pytest.mark.parametrize("mode", ASYNC_MODES)
def test_calls_that_wait_for_people_take_no_thread_from_tools(mode: str, timeout: float | None) -> None:
    released, waiting = threading.Event(), threading.Semaphore(0)

    def ask(request: ApprovalRequest) -> Approve:
        waiting.release()
        assert released.wait(PATIENCE)
        return Approve()

    loop = ToolCallingAdvisor(ToolCallingManager(workers=WorkerPool(1)))
    clients = [client_of(ApprovalAdvisor(ask, timeout), tool_calling_advisor=loop) for _ in range(3)]
    looking = client_of(turns=[ToolCall("look", {}, id="l"), "done"], tool_calling_advisor=loop)

    async def all_at_once() -> None:
        asking = [asyncio.ensure_future(arun(mode, each.prompt("?"))) for each in clients]
        for _ in clients:
            assert await asyncio.to_thread(waiting.acquire, timeout=PATIENCE)
        assert (await arun(mode, looking.prompt("?"))).tool_results[0].ok
        released.set()
        assert [each.tool_results[0].decision for each in await asyncio.gather(*asking)] == ["approved"] * 3

    asyncio.run(patiently(all_at_once()))


@pytest.mark.parametrize("mode", MODES)
def test_the_other_calls_of_the_answer_run_while_one_waits(mode: str) -> None:
    looked = threading.Event()

    @tool
    def glance() -> str:
        """Glance."""
        looked.set()
        return "seen"

    def ask(request: ApprovalRequest) -> Approve:
        assert looked.wait(PATIENCE)
        return Approve()

    response = played(mode, ask, pays(), ToolCall("glance", {}, id="g"), tools=[pay, glance])
    assert [each.decision for each in response.tool_results] == ["approved", "allowed"]


@pytest.mark.parametrize("mode", ASYNC_MODES)
def test_a_run_that_is_cancelled_while_a_call_waits_runs_no_tool(mode: str, telemetry: Telemetry) -> None:
    async def main() -> None:
        asked = asyncio.Event()

        async def ask(request: ApprovalRequest) -> None:
            asked.set()
            await asyncio.Event().wait()

        spec = client_of(ApprovalAdvisor(ask), telemetry=telemetry.options).prompt("?")
        task = asyncio.create_task(arun(mode, spec))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(patiently(main()))
    assert not SENT
    assert (telemetry.one("await_approval pay").attributes or {})[names.ERROR_TYPE] == "cancelled"
    [pending] = telemetry.metric(names.APPROVAL_PENDING.name)
    assert pending.value == 0
    assert_consistent(telemetry)


# Several approvers.


class Desk(Advisor):
    """Decides about approvals, and records that it was asked."""

    def __init__(self, name: str, order: int, answer: object, asked: list[str]) -> None:
        self.name, self.order, self._answer, self._asked = name, order, answer, asked

    async def decide_approval(self, request: ApprovalRequest) -> Any:
        self._asked.append(self.name)
        return self._answer


@pytest.mark.parametrize("mode", MODES)
def test_the_outermost_approver_is_asked_first_and_the_next_if_it_cannot_decide(mode: str) -> None:
    for first, asked_in_order, decision in [
        (Undecided(), ["first", "second"], "rejected"),
        (Approve(by="ana"), ["first"], "approved"),
        (Denied("no quorum", "quorum"), ["first"], "denied"),
    ]:
        asked: list[str] = []
        desks = [Desk("second", 500, Reject("no"), asked), Desk("first", 450, first, asked)]
        [result] = run(mode, client_of(*desks).prompt("?")).tool_results
        assert (asked, result.decision) == (asked_in_order, decision)
        assert result.advisor == (None if decision == "approved" else asked_in_order[-1])


@pytest.mark.parametrize("mode", MODES)
def test_an_approver_that_returns_something_else_fails_the_run(mode: str) -> None:
    with pytest.raises(TypeError, match=r"decide_approval of first must return an Approve, .* not bool"):
        run(mode, client_of(Desk("first", 450, True, [])).prompt("?"))
    assert not SENT


NO_JSON = {"a date": timedelta(), "not a number": float("nan"), "a set": {MARKER}, "a surrogate key": {1.5: {1}}}


@pytest.mark.parametrize("value", NO_JSON.values(), ids=NO_JSON)
def test_an_approval_with_arguments_that_are_not_json_is_refused_by_name(value: object) -> None:
    with pytest.raises(ValueError, match="arguments must be a JSON object") as raised:
        Approve(arguments={"amount": value})
    assert MARKER not in f"{raised.value} {raised.value.__context__!r}"


@pytest.mark.parametrize("mode", MODES)
def test_a_call_is_denied_if_it_is_approved_with_arguments_that_are_not_json(mode: str) -> None:
    response = played(mode, lambda request: Approve(arguments={"amount": {1}}))
    [result] = response.tool_results
    assert (result.decision, result.reason_code, response.content) == ("denied", "approval_failed", "done")


@pytest.mark.parametrize("mode", MODES)
def test_an_approver_need_not_be_async(mode: str) -> None:
    class Plain(Advisor):
        name, order = "plain", 500

        def decide_approval(self, request: ApprovalRequest) -> Any:
            return Approve(by="ana")

    [result] = run(mode, client_of(Plain()).prompt("?")).tool_results
    assert (result.decision, result.by) == ("approved", "ana")


# Tools that say when they require approval.


async def is_large(args: Mapping[str, Any]) -> bool:
    await asyncio.sleep(0)
    return bool(args["amount"] > 10)


def broken(args: Mapping[str, Any]) -> bool:
    raise LookupError(f"{MARKER} {args}")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("predicate", "decisions"),
    [
        (lambda args: args["amount"] > 10, ["allowed", "rejected"]),
        (is_large, ["allowed", "rejected"]),
        (broken, ["rejected", "rejected"]),
        (lambda args: None, ["rejected", "rejected"]),
        (lambda args: 0, ["rejected", "rejected"]),
    ],
    ids=["plain", "async", "raises", "None", "0"],
)
def test_a_tool_may_require_approval_by_its_arguments(
    mode: str, predicate: Any, decisions: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    @tool(requires_approval=predicate)
    def send(amount: int) -> str:
        """Send."""
        return "sent"

    calls = [ToolCall("send", {"amount": amount}, id=str(amount)) for amount in (5, 50)]
    with caplog.at_level(logging.WARNING, "traced_tools.tools"):
        response = played(mode, Reject("no"), *calls, tools=[send])
    assert [each.decision for each in response.tool_results] == decisions
    failed = "requires_approval of the tool send failed: LookupError; the call requires approval"
    assert caplog.messages == ([failed] * 2 if predicate is broken else [])


# Approvals of more than a call.


def asked_about(advisor: ApprovalAdvisor, *amounts: object, mode: str = "call", **client: Any) -> list[ToolResult]:
    """Run one call after the other, and return their results."""
    turns = [pays(amount, id=f"p{index}") for index, amount in enumerate(amounts)]
    prompt = {"principal": client.pop("principal", None)}
    spec = client_of(advisor, turns=[*turns, "done"], **client).prompt("?", **prompt)
    return list(run(mode, spec).tool_results)


class Once:
    """Approves the first call that it is asked about, and rejects the others."""

    def __init__(self, answer: Approve) -> None:
        self._answers: list[Approve] = [answer]

    def __call__(self, request: ApprovalRequest) -> Approve | Reject:
        return self._answers.pop() if self._answers else Reject("asked again")


def decided(results: list[ToolResult]) -> list[tuple[str | None, str | None, str | None]]:
    return [(each.decision, each.by, each.reason_code) for each in results]


FIRST, AGAIN = ("approved", "ana", None), ("rejected", None, None)
STANDING = ("approved", "ana", "approval:p0")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("scope", "same_run", "next_run"),
    [
        ("call", [FIRST, AGAIN, AGAIN], [AGAIN, AGAIN]),
        ("run", [FIRST, STANDING, STANDING], [AGAIN, AGAIN]),
        ("arguments", [FIRST, STANDING, AGAIN], [STANDING, AGAIN]),
        ("tool", [FIRST, STANDING, STANDING], [STANDING, STANDING]),
    ],
)
def test_an_approval_covers_what_its_scope_says(mode: str, scope: Any, same_run: Any, next_run: Any) -> None:
    advisor = ApprovalAdvisor(Once(Approve(by="ana", scope=scope)))
    assert decided(asked_about(advisor, 5, 5, 7, mode=mode)) == same_run
    assert decided(asked_about(advisor, 5, 7, mode=mode)) == next_run


@pytest.mark.parametrize("scope", ["arguments", "tool"])
def test_a_standing_approval_is_for_one_agent_one_principal_and_one_definition(scope: Any) -> None:
    @tool(name="pay", requires_approval=True)
    def pay_more(amount: int, currency: str = "EUR") -> str:
        """Pay in any currency."""
        return "paid"

    advisor = ApprovalAdvisor(Once(Approve(by="ana", scope=scope)))
    mine = {"principal": "user-1", "name": "desk"}
    assert decided(asked_about(advisor, 5, **mine)) == [FIRST]
    assert decided(asked_about(advisor, 5, **{**mine, "principal": "user-2"})) == [AGAIN]
    assert decided(asked_about(advisor, 5, name="desk")) == [AGAIN]
    assert decided(asked_about(advisor, 5, **{**mine, "name": "lab"})) == [AGAIN]
    assert decided(asked_about(advisor, 5, **mine, tools=[pay_more])) == [AGAIN]
    assert decided(asked_about(advisor, 5, **mine)) == [STANDING]


@pytest.mark.parametrize("scope", ["arguments", "tool"])
def test_a_standing_approval_in_nested_runs_is_for_the_principal_of_the_outer_run(scope: Any) -> None:
    advisor = ApprovalAdvisor(Once(Approve(by="ana", scope=scope)))
    found: list[ToolResult] = []

    @tool
    def ask() -> str:
        """Ask another agent."""
        found.extend(asked_about(advisor, 5))
        return "asked"

    for principal in ("user-1", "user-2", "user-1"):
        model = ScriptedChatModel([ToolCall("ask"), "done"])
        ChatClient(model, tools=[ask]).prompt("?", principal=principal).call()
    assert decided(found) == [FIRST, AGAIN, STANDING]


@pytest.mark.parametrize("scope", ["arguments", "tool"])
def test_a_standing_approval_is_for_the_tool_of_one_source(scope: Any) -> None:
    def of(source: str) -> FunctionToolCallback:
        metadata = ToolMetadata(requires_approval=True, source=source)
        return FunctionToolCallback(pay, metadata=metadata)

    advisor = ApprovalAdvisor(Once(Approve(by="ana", scope=scope)))
    assert decided(asked_about(advisor, 5, tools=[of("bank-test")])) == [FIRST]
    assert decided(asked_about(advisor, 5, tools=[of("bank")])) == [AGAIN]
    assert decided(asked_about(advisor, 5, tools=[of("bank-test")])) == [STANDING]


def test_a_standing_approval_of_an_exact_number_is_for_all_of_its_digits() -> None:
    paid: list[Decimal] = []

    @tool(name="pay", requires_approval=True)
    def pay_exactly(amount: Decimal) -> str:
        """Pay an exact amount."""
        paid.append(amount)
        return "paid"

    advisor = ApprovalAdvisor(Once(Approve(by="ana", scope="arguments")))
    amounts = ["1000", "1000.00000000000000001", "1000.0"]
    assert decided(asked_about(advisor, *amounts, tools=[pay_exactly])) == [FIRST, AGAIN, STANDING]
    assert paid == [Decimal(1000), Decimal(1000)]


@pytest.mark.parametrize("scope", ["arguments", "tool"])
def test_a_standing_approval_expires(scope: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr("traced_tools.advisors.approval.time.monotonic", lambda: now)
    advisor = ApprovalAdvisor(Once(Approve(by="ana", scope=scope, expires=timedelta(hours=1))), timeout=None)
    assert decided(asked_about(advisor, 5, 5)) == [FIRST, STANDING]
    now += 3599
    assert decided(asked_about(advisor, 5)) == [STANDING]
    now += 1
    assert decided(asked_about(advisor, 5)) == [AGAIN]


def test_an_approval_for_the_run_ends_with_the_run() -> None:
    advisor = ApprovalAdvisor(lambda request: Approve(scope="run"))
    asked_about(advisor, 5, 5)

    def is_empty() -> bool:
        gc.collect()
        return not advisor._of_runs

    until(is_empty)  # the thread that asked may hold the run for a moment


# Arguments that change.


class Again(Advisor):
    """Runs each call twice."""

    name, order = "again", 401

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        await call_next(call)
        return await call_next(call)


class Raising(Advisor):
    """Raises the amount of each call by 1."""

    name, order = "raising", 600

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        return await call_next(call.replace(arguments={"amount": call.args["amount"] + 1}))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("answer", [Approve(by="ana"), Approve(by="ana", arguments={"amount": 9})], ids=["", "edited"])
def test_an_advisor_that_runs_the_call_again_does_not_ask_again(mode: str, answer: Approve) -> None:
    asked: list[str] = []

    def ask(request: ApprovalRequest) -> Approve:
        asked.append(request.call_id)
        return answer

    [result] = played(mode, ask, advisors=[Again()]).tool_results
    assert (result.decision, result.by) == ("approved", "ana")
    assert (asked, SENT) == (["p"], [9, 9] if answer.arguments else [5, 5])


@pytest.mark.parametrize("how", ["perform", "aperform"])
def test_an_approval_by_the_driver_covers_only_the_arguments_that_it_saw(how: str) -> None:
    for advisors, edited, sent in [([], None, [5]), ([], {"amount": "8"}, [8]), ([Raising()], None, [])]:
        SENT.clear()
        driven = client_of(*advisors).prompt("?").start()
        while step := driven.next():
            if isinstance(step, ExecuteTools):
                step.approve("p", by="ana", arguments=edited)
            driven.perform(step) if how == "perform" else asyncio.run(driven.aperform(step))
        assert sent == SENT
        assert [each.args for each in driven.response.pending] == ([] if sent else [{"amount": 6}])
        assert [each.by for each in driven.response.tool_results] == ["ana"] * len(sent)


@pytest.mark.parametrize("mode", MODES)
def test_those_who_are_asked_see_the_arguments_that_the_tool_would_receive(mode: str) -> None:
    seen: list[ApprovalRequest] = []

    def ask(request: ApprovalRequest) -> Reject:
        seen.append(request)
        return Reject("no")

    played(mode, ask, pays("5"), advisors=[Raising()], name="desk")
    [request] = seen
    assert (request.call_id, request.tool, request.args) == ("p", "pay", {"amount": 6})
    assert (request.reason, request.rule, request.run.agent) == (None, None, "desk")
    assert "amount" not in repr(request.pending())


# What cannot be used.


ASKING, REJECTING = {"ask": print}, {"reason": "no"}


@pytest.mark.parametrize(
    ("kind", "given", "error", "says"),
    [
        (ApprovalAdvisor, {"ask": None}, TypeError, "ask must be a function"),
        (ApprovalAdvisor, {"ask": "ana"}, TypeError, "ask must be callable, not str"),
        (ApprovalAdvisor, {**ASKING, "timeout": 0}, ValueError, "timeout must be above 0"),
        (ApprovalAdvisor, {**ASKING, "name": 1}, TypeError, "name must be a str"),
        (ApprovalAdvisor, {**ASKING, "order": "x"}, TypeError, "order must be an int"),
        (Approve, {"by": " "}, ValueError, "by must not be blank"),
        (Approve, {"by": 1}, TypeError, "by must be a str or None"),
        (Approve, {"arguments": "{}"}, TypeError, "arguments must be a mapping or None"),
        (Approve, {"scope": "all"}, ValueError, "scope must be one of call, run, arguments, tool"),
        (Approve, {"expires": 5, "scope": "tool"}, TypeError, "expires must be a timedelta or None"),
        (Approve, {"expires": timedelta(1)}, ValueError, "expires is for standing rules"),
        (Approve, {"expires": timedelta(), "scope": "tool"}, ValueError, "expires must be a positive duration"),
        (Approve, {"arguments": {}, "scope": "run"}, ValueError, "other arguments can be approved for one call only"),
        (Approve, {"code": 1}, TypeError, "code must be a str or None"),
        (Reject, {"reason": None}, TypeError, "reason must be a str"),
        (Reject, {**REJECTING, "by": ""}, ValueError, "by must not be blank"),
        (Reject, {**REJECTING, "code": 1}, TypeError, "code must be a str or None"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(
    kind: Callable[..., object], given: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        kind(**given)


def test_no_decision_shows_content_in_its_repr() -> None:
    shown = [Approve(by=MARKER, arguments={"a": MARKER}), Reject(MARKER, by=MARKER), Denied(MARKER, "code")]
    assert MARKER not in repr([*shown, ApprovalAdvisor(print)])
