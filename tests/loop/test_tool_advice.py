"""The tools that the loop calls: what the model gets if they fail, and advisors around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.modes import MODES, run
from tests.observe.runs import adds
from tests.sample_tools import add, fail
from traced_tools import (
    Advisor,
    ChatClient,
    ChatClientResponse,
    LoopLimits,
    ToolCall,
    ToolExecutionError,
    ToolMessage,
    ToolResult,
)
from traced_tools.core import ToolErrors
from traced_tools.errors import ToolNotFoundError
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolInvocation
from traced_tools.tools.invocation import CallNext

pytestmark = pytest.mark.parametrize("mode", MODES)


# When a tool fails.


def test_a_failure_is_reported_to_the_model_and_other_calls_keep_their_results(mode: str) -> None:
    model = ScriptedChatModel([[adds(1, 1), ToolCall("fail", {"reason": "no disk"}), adds(2, 2)], "noted"])
    response = run(mode, ChatClient(model, tools=[add, fail]).prompt("?"))
    assert [each.content for each in response.tool_results] == ["2", "The tool fail failed: RuntimeError: no disk", "4"]
    assert [each.ok for each in response.tool_results] == [True, False, True]
    results = model.requests[1].messages[-1]
    assert isinstance(results, ToolMessage)
    assert [part.is_error for part in results.results] == [False, True, False]


@pytest.mark.parametrize(
    "errors",
    [ToolErrors(always_raise=True), ToolErrors(raise_on=(RuntimeError,)), ToolErrors(raise_on=(Exception,))],
    ids=["always", "exactly", "base class"],
)
def test_a_failure_raises_when_the_policy_says_so(mode: str, errors: ToolErrors) -> None:
    model = ScriptedChatModel([[adds(1, 1), ToolCall("fail", {"reason": "no disk"})]])
    with pytest.raises(ToolExecutionError) as caught:
        run(mode, ChatClient(model, tools=[add, fail], tool_errors=errors).prompt("?"))
    assert (caught.value.tool, caught.value.error_type) == ("fail", "RuntimeError")
    assert isinstance(caught.value.original, RuntimeError)
    assert str(caught.value.original) == "no disk"
    assert "no disk" not in str(caught.value)


def test_a_failure_outside_the_policys_classes_is_reported_to_the_model(mode: str) -> None:
    model = ScriptedChatModel([ToolCall("fail"), "noted"])
    client = ChatClient(model, tools=[fail], tool_errors=ToolErrors(raise_on=(PermissionError,)))
    assert run(mode, client.prompt("?")).content == "noted"


def test_the_words_for_the_model_can_be_replaced(mode: str) -> None:
    model = ScriptedChatModel([ToolCall("fail"), "noted"])
    errors = ToolErrors(message=lambda name, error: f"{name} is off ({type(error).__name__})")
    response = run(mode, ChatClient(model, tools=[fail]).prompt("?", tool_errors=errors))
    assert response.tool_results[0].content == "fail is off (RuntimeError)"


def test_an_unknown_name_is_answered_with_the_names_there_are(mode: str) -> None:
    model = ScriptedChatModel([[ToolCall("subtract"), adds(1, 1)], "ok"])
    response = run(mode, ChatClient(model, tools=[add, fail]).prompt("?"))
    unknown, known = response.tool_results
    assert (unknown.decision, unknown.error_type, unknown.outcome) == ("unknown_tool", "unknown_tool", None)
    assert "add, fail" in unknown.content
    assert known.content == "2"


def test_an_unknown_name_raises_when_the_policy_says_so(mode: str) -> None:
    client = ChatClient(ScriptedChatModel([[ToolCall("subtract"), adds(1, 1)]]), tools=[add])
    with pytest.raises(ToolNotFoundError) as caught:
        run(mode, client.prompt("?", tool_errors=ToolErrors(unknown_tool="raise")))
    assert "subtract" not in str(caught.value)


# Advice around tools.


class Advice(Advisor):
    """Does with each call what it is made with."""

    def __init__(
        self, advise: Callable[[ToolInvocation, CallNext], Any], name: str = "advice", order: int = 400
    ) -> None:
        self.name = name
        self.order = order
        self._advise = advise

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        result = self._advise(call, call_next)
        return result if isinstance(result, ToolResult) else await result


def ask(mode: str, *advice: Advisor, calls: Any = None, turns: Sequence[Any] = ("done",)) -> ChatClientResponse:
    model = ScriptedChatModel([adds(1, 1) if calls is None else calls, *turns])
    return run(mode, ChatClient(model, tools=[add, fail], advisors=advice).prompt("?", tool_context={"user": "ann"}))


def test_advice_sees_the_call(mode: str) -> None:
    seen: list[ToolInvocation] = []

    def note(call: ToolInvocation, call_next: CallNext) -> Any:
        seen.append(call)
        return call_next(call)

    response = ask(mode, Advice(note))
    (call,) = seen
    assert (call.name, call.arguments, call.iteration) == ("add", '{"a":1,"b":1}', 1)
    assert (call.id, call.definition.description) == (response.tool_results[0].call_id, "Add two numbers.")
    assert (dict(call.context), call.context.run_id) == ({"user": "ann"}, response.run_id)


def test_advice_can_deny_a_call(mode: str) -> None:
    response = ask(mode, Advice(lambda call, call_next: call.denied("too expensive")))
    (result,) = response.tool_results
    assert (result.decision, result.outcome, result.error_type, result.advisor) == ("denied", None, None, "advice")
    assert "too expensive" in result.content
    assert result.part().is_error


def test_advice_can_answer_in_the_tools_place(mode: str) -> None:
    response = ask(mode, Advice(lambda call, call_next: call.answered("42", value=42)))
    (result,) = response.tool_results
    assert (result.decision, result.content, result.value, result.advisor) == ("answered", "42", 42, "advice")
    assert not result.part().is_error


def test_advice_can_change_the_arguments(mode: str) -> None:
    change = Advice(lambda call, call_next: call_next(call.replace(arguments='{"a": 20, "b": 22}')))
    assert ask(mode, change).tool_results[0].content == "42"


def test_changed_arguments_are_checked_again(mode: str) -> None:
    change = Advice(lambda call, call_next: call_next(call.replace(arguments='{"a": "many"}')))
    (result,) = ask(mode, change).tool_results
    assert (result.decision, result.error_type, result.outcome) == ("invalid_arguments", "invalid_arguments", None)
    assert "a: " in result.content


def test_arguments_changed_for_one_attempt_do_not_stick_to_the_next(mode: str) -> None:
    async def both(call: ToolInvocation, call_next: CallNext) -> ToolResult:
        await call_next(call.replace(arguments='{"a": 20, "b": 22}'))
        return await call_next(call)

    assert ask(mode, Advice(both)).tool_results[0].content == "2"


def test_advice_can_run_a_tool_again(mode: str) -> None:
    attempts: list[int] = []

    def flaky() -> str:
        """Fail at first."""
        attempts.append(1)
        if len(attempts) < 3:
            raise ConnectionError
        return "at last"

    async def again(call: ToolInvocation, call_next: CallNext) -> ToolResult:
        result = await call_next(call)
        while not result.ok:
            result = await call_next(call)
        return result

    model = ScriptedChatModel([ToolCall("flaky"), "done"])
    response = run(mode, ChatClient(model, tools=[flaky], advisors=[Advice(again)]).prompt("?"))
    assert (response.tool_results[0].content, len(attempts)) == ("at last", 3)


def test_advice_sees_a_failure_as_a_result(mode: str) -> None:
    async def excuse(call: ToolInvocation, call_next: CallNext) -> ToolResult:
        result = await call_next(call)
        assert (result.error_type, result.outcome) == ("RuntimeError", "error")
        assert isinstance(result.error, RuntimeError)
        return call.answered("never mind")

    assert ask(mode, Advice(excuse), calls=ToolCall("fail")).tool_results[0].content == "never mind"


def test_the_lower_order_stands_further_out(mode: str) -> None:
    seen: list[str] = []

    def note(name: str, order: int) -> Advice:
        async def around(call: ToolInvocation, call_next: CallNext) -> ToolResult:
            seen.append(f"{name} in")
            result = await call_next(call)
            seen.append(f"{name} out")
            return result

        return Advice(around, name, order)

    ask(mode, note("inner", 500), note("outer", 100))
    assert seen == ["outer in", "inner in", "inner out", "outer out"]


def test_an_outer_refusal_never_reaches_the_inner_advice(mode: str) -> None:
    def unreachable(call: ToolInvocation, call_next: CallNext) -> Any:
        raise AssertionError("the inner advice was reached")

    outer = Advice(lambda call, call_next: call.denied("no"), "outer", 100)
    (result,) = ask(mode, outer, Advice(unreachable, "inner", 500)).tool_results
    assert result.advisor == "outer"


def test_the_advisor_that_decided_is_the_one_named(mode: str) -> None:
    inner = Advice(lambda call, call_next: call.denied("no"), "inner", 500)
    outer = Advice(lambda call, call_next: call_next(call), "outer", 100)
    assert ask(mode, inner, outer).tool_results[0].advisor == "inner"


def test_an_error_of_an_advisor_passes_unchanged(mode: str) -> None:
    error = LookupError("mine")

    def broken(call: ToolInvocation, call_next: CallNext) -> Any:
        raise error

    with pytest.raises(LookupError) as caught:
        ask(mode, Advice(broken))
    assert caught.value is error


def test_advice_that_returns_something_else_is_named(mode: str) -> None:
    async def odd(call: ToolInvocation, call_next: CallNext) -> Any:
        return "42"

    with pytest.raises(TypeError, match="advise_tool of advice must return a ToolResult, not str"):
        ask(mode, Advice(odd))


@pytest.mark.parametrize("calls", [ToolCall("invented"), ToolCall("add", {"a": "x"})], ids=["unknown", "invalid"])
def test_a_call_that_cannot_run_never_reaches_advice(mode: str, calls: ToolCall) -> None:
    def unreachable(call: ToolInvocation, call_next: CallNext) -> Any:
        raise AssertionError("the advice was reached")

    assert not ask(mode, Advice(unreachable), calls=calls).tool_results[0].ok


def test_tools_and_advisors_get_the_deadline(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traced_tools.core.limits.time", SimpleNamespace(monotonic=lambda: 1000.0))
    deadlines: list[float | None] = []

    def note(call: ToolInvocation, call_next: CallNext) -> Any:
        deadlines.append(call.context.deadline)
        return call_next(call)

    model = ScriptedChatModel([adds(1, 1), "two"])
    client = ChatClient(model, tools=[add], advisors=[Advice(note)], limits=LoopLimits(max_seconds=5))
    run(mode, client.prompt("?"))
    assert deadlines == [1005.0]
