"""The calls of one answer: their order, their arguments, their results."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from tests.captured import Telemetry, total
from tests.markers import MARKER
from tests.modes import MODES, run
from tests.sample_tools import add, fail
from tests.tools.plain import Own, in_loop, nothing
from traced_tools import ChatClient, ToolCall, ToolContext, ToolExecutionError
from traced_tools.core import ToolErrors, dump_messages, load_messages
from traced_tools.observe import names
from traced_tools.testing import ScriptedChatModel

# Batches.


@pytest.mark.parametrize("mode", MODES)
def test_results_are_in_call_order_whichever_tool_finishes_first(mode: str) -> None:
    last_is_done = threading.Event()

    def slow() -> str:
        """Wait for the other one."""
        assert last_is_done.wait(30)
        return "slow"

    def quick() -> str:
        """Let the other one go on."""
        last_is_done.set()
        return "quick"

    assert in_loop(mode, ToolCall("slow"), ToolCall("quick"), tools=[slow, quick]) == ["slow", "quick"]


@pytest.mark.parametrize("mode", MODES)
def test_two_calls_of_one_tool_are_both_answered(mode: str) -> None:
    calls = [ToolCall("add", {"a": 1, "b": 1}), ToolCall("add", {"a": 2, "b": 2})]
    assert in_loop(mode, *calls, tools=[add]) == ["2", "4"]


@pytest.mark.parametrize("mode", MODES)
def test_async_and_blocking_tools_run_in_one_batch(mode: str) -> None:
    async def later(text: str) -> str:
        """Answer later."""
        await asyncio.sleep(0)
        return text

    calls = [ToolCall("later", {"text": "x"}), ToolCall("add", {"a": 1, "b": 1})]
    assert in_loop(mode, *calls, tools=[later, add]) == ["x", "2"]


@pytest.mark.parametrize("mode", MODES)
def test_sibling_calls_keep_their_results_after_every_kind_of_failure(mode: str) -> None:
    calls = [
        ToolCall("add", {"a": 1, "b": 1}),
        ToolCall("fail", {"reason": "no disk"}),
        ToolCall("invented"),
        ToolCall("add", "{not json"),
        ToolCall("own", "[]"),
        ToolCall("add", {"a": 2, "b": 2}),
    ]
    contents = in_loop(mode, *calls, tools=[add, fail, Own()])
    assert (contents[0], contents[5]) == ("2", "4")
    assert contents[1] == "The tool fail failed: RuntimeError: no disk"
    assert "no tool of that name" in contents[2]
    assert contents[3].startswith("The arguments are invalid: ")
    assert "must be a JSON object" in contents[4]


@pytest.mark.parametrize("mode", MODES)
def test_with_a_raising_policy_every_sibling_still_runs(mode: str) -> None:
    ran: list[str] = []

    def note(text: str) -> str:
        """Note the text."""
        ran.append(text)
        return text

    model = ScriptedChatModel([[ToolCall("fail"), ToolCall("note", {"text": "b"})]])
    client = ChatClient(model, tools=[fail, note], tool_errors=ToolErrors(always_raise=True))
    with pytest.raises(ToolExecutionError):
        run(mode, client.prompt("?"))
    assert ran == ["b"]


@pytest.mark.parametrize("mode", MODES)
def test_the_first_failure_in_call_order_is_the_one_raised(mode: str) -> None:
    model = ScriptedChatModel([[ToolCall("fail", {"reason": "first"}), ToolCall("fail", {"reason": "second"})]])
    client = ChatClient(model, tools=[fail], tool_errors=ToolErrors(always_raise=True))
    with pytest.raises(ToolExecutionError) as caught:
        run(mode, client.prompt("?"))
    assert str(caught.value.original) == "first"


@pytest.mark.parametrize("mode", MODES)
def test_tools_run_in_the_callers_context(mode: str) -> None:
    tenant: ContextVar[str] = ContextVar("tenant")

    def who() -> str:
        """Return the tenant."""
        return tenant.get("nobody")

    token = tenant.set("t1")
    try:
        assert in_loop(mode, ToolCall("who"), ToolCall("who", {}), tools=[who]) == ["t1", "t1"]
    finally:
        tenant.reset(token)


# Arguments.


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("text", ["", " ", "\n\t", "{}", "null"])
def test_blank_arguments_reach_a_tool_as_an_empty_object(mode: str, text: str) -> None:
    own = Own()
    contents = in_loop(mode, ToolCall("nothing", text), ToolCall("own", text), tools=[nothing, own])
    assert contents == ["nothing given", "{}"]


@pytest.mark.parametrize("mode", MODES)
def test_nested_arguments_reach_the_tool_unchanged(mode: str) -> None:
    nested = {"filter": {"tags": ["a", {"deep": None}], "limits": [1, 2.5]}, "text": 'quote " and ünïcode'}

    def find(filter: dict[str, Any], text: str) -> dict[str, Any]:
        """Find."""
        return {"filter": filter, "text": text}

    contents = in_loop(mode, ToolCall("find", nested), ToolCall("own", nested), tools=[find, Own()])
    assert [json.loads(content) for content in contents] == [nested, nested]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("{", "arguments: not valid JSON"),
        ("[1, 2]", "arguments: "),
        ('"text"', "arguments: "),
        ("{}", "a: is required; b: is required"),
        ('{"a": 1, "b": "many"}', "b: must be an integer"),
        ('{"a": 1, "b": 2, "c": 3}', "c: is not a known field"),
        ('{"a": 1, "b": null}', "b: must be an integer"),
    ],
)
def test_invalid_arguments_are_refused_with_a_text_that_says_what_to_correct(
    mode: str, arguments: str, problem: str
) -> None:
    (content,) = in_loop(mode, ToolCall("add", arguments), tools=[add])
    assert content.startswith(f"The arguments are invalid: {problem}")
    assert content.endswith("Correct them and call the tool again.")


def test_the_values_of_invalid_arguments_are_not_repeated() -> None:
    (content,) = in_loop("call", ToolCall("add", {"a": MARKER, "b": [MARKER]}), tools=[add])
    assert MARKER not in content


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_gets_a_fresh_list_for_each_call(mode: str) -> None:
    def pop(items: list[int]) -> int:
        """Take the last one."""
        return items.pop()

    calls = [ToolCall("pop", {"items": [1, 2]}), ToolCall("pop", {"items": [1, 2]})]
    assert in_loop(mode, *calls, tools=[pop]) == ["2", "2"]


# Results.


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1.0, float("-inf")]], ids=str)
def test_a_number_without_a_json_form_reaches_the_model_as_json(mode: str, value: Any) -> None:
    def measure() -> Any:
        """Measure."""
        return value

    def refuse(word: str) -> Any:
        raise AssertionError(f"{word} is no JSON")

    (content,) = in_loop(mode, ToolCall("measure"), tools=[measure])
    json.loads(content, parse_constant=refuse)


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_that_returns_none_is_answered(mode: str) -> None:
    def note(text: str) -> None:
        """Note the text."""

    def find(text: str) -> str | None:
        """Find nothing."""
        return None

    calls = [ToolCall("note", {"text": "x"}), ToolCall("find", {"text": "x"})]
    assert in_loop(mode, *calls, tools=[note, find]) == ["Done", "null"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("wrong", [5, b"x", ["x"], {"a": 1}], ids=str)
def test_a_custom_tool_that_does_not_return_text_fails(mode: str, wrong: Any) -> None:
    (content,) = in_loop(mode, ToolCall("own"), tools=[Own(answer=wrong)])
    assert content == f"The tool own failed: TypeError: Own.call must return str, not {type(wrong).__name__}"


@pytest.mark.parametrize("mode", MODES)
def test_a_value_that_json_cannot_represent_fails_the_tool_and_not_the_run(mode: str) -> None:
    def odd() -> object:
        """Return something odd."""
        return object()

    (content,) = in_loop(mode, ToolCall("odd"), tools=[odd])
    assert content.startswith("The tool odd failed: ")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", ["result", "error", "arguments"])
def test_a_text_that_utf8_cannot_encode_is_sent_stored_and_traced(mode: str, where: str) -> None:
    def path() -> str:
        """Return a file name that is not UTF-8, as `os.fsdecode` returns it."""
        return "file-\udcff"

    def missing() -> str:
        """Raise with such a name."""
        raise FileNotFoundError("file-\udcff")

    turn = {"result": ToolCall("path"), "error": ToolCall("missing"), "arguments": ToolCall("own", '{"a": "\udcff"}')}[
        where
    ]
    telemetry = Telemetry()
    client = ChatClient(ScriptedChatModel([turn, "done"]), tools=[path, missing, Own()], telemetry=telemetry.options)
    response = run(mode, client.prompt("?"))
    assert load_messages(dump_messages(response.messages)) == response.messages
    assert telemetry.metric(names.TELEMETRY_FAILURES.name) == []
    assert [total(point) for point in telemetry.metric(names.TOOL_DECISIONS.name)] == [1]


@pytest.mark.parametrize("mode", MODES)
def test_an_error_whose_str_raises_does_not_fail_the_run(mode: str) -> None:
    class UnspeakableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even this")

    def unspeakable() -> str:
        """Raise."""
        raise UnspeakableError

    (content,) = in_loop(mode, ToolCall("unspeakable"), tools=[unspeakable])
    assert content.startswith("The tool unspeakable failed: ")


@pytest.mark.parametrize("mode", MODES)
def test_the_model_reads_the_errors_text_up_to_a_length(mode: str) -> None:
    (content,) = in_loop(mode, ToolCall("fail", {"reason": "x" * 10_000}), tools=[fail])
    assert content == "The tool fail failed: RuntimeError: " + "x" * 2000


@pytest.mark.parametrize("mode", ["call", "stream"])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_is_not_a_failure_of_a_tool(mode: str, kind: Callable[[], BaseException]) -> None:
    def stop() -> str:
        """Stop everything."""
        raise kind()

    with pytest.raises(BaseException) as caught:
        in_loop(mode, ToolCall("stop"), tools=[stop])
    assert type(caught.value) is kind


@pytest.mark.parametrize("mode", MODES)
def test_a_custom_tools_acall_is_used_under_asyncio(mode: str) -> None:
    class Both(Own):
        async def acall(self, tool_input: str, context: ToolContext | None = None) -> str:
            return "from acall"

    expected = "from acall" if mode.startswith("a") else "{}"
    assert in_loop(mode, ToolCall("own"), tools=[Both()]) == [expected]
