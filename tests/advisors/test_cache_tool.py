"""`CacheToolAdvisor` answers equal calls of the tools that it is for without running them."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.audit.draft_trails import KeptTrail, auditing
from tests.captured import Telemetry
from tests.markers import MARKER
from tests.modes import run
from tests.waiting import in_time
from traced_tools import (
    Advisor,
    ApprovalAdvisor,
    ApprovalRequest,
    Approve,
    CacheToolAdvisor,
    ChatClient,
    ConfigurationError,
    Policy,
    PolicyAdvisor,
    Reject,
    Rule,
    ToolCall,
    ToolContext,
    ToolResult,
    tool,
)
from traced_tools.core import ToolAnnotations, ToolDefinition, ToolMetadata, expiring
from traced_tools.core.canonical import canonical_json
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolInvocation
from traced_tools.tools.invocation import CallNext


class Counting:
    """A tool that counts its calls and answers with their number."""

    def __init__(self, annotations: ToolAnnotations = ToolAnnotations(), error: Exception | None = None) -> None:  # noqa: B008
        self.calls = 0

        @tool(annotations=annotations)
        def count(key: Any = None) -> int:
            """Count."""
            self.calls += 1
            if error is not None:
                raise error
            return self.calls

        self.tool = count


def results(
    mode: str,
    advisors: list[Advisor],
    counting: Counting,
    *keys: Any,
    asking: dict[str, Any] | None = None,
    **client: Any,
) -> list[ToolResult]:
    """Call the tool with each key, in a run of its own, and return the results."""
    found = []
    for key in keys:
        model = ScriptedChatModel([ToolCall("count", {"key": key}), "done"])
        spec = ChatClient(model, tools=[counting.tool], advisors=advisors, **client).prompt("?", **(asking or {}))
        found += run(mode, spec).tool_results
    return found


def test_an_equal_call_is_answered_with_the_earlier_result(mode: str, telemetry: Telemetry) -> None:
    counting, cache = Counting(), CacheToolAdvisor("count")
    first, second, other = results(
        mode, [cache], counting, {"a": 1, "b": 2}, {"b": 2.0, "a": 1}, "c", telemetry=telemetry.options
    )
    assert (first.decision, first.content, first.outcome) == ("allowed", "1", "ok")
    assert (second.decision, second.advisor, second.content, second.outcome) == ("answered", "cache_tool", "1", None)
    assert not second.part().is_error
    assert other.content == "2"
    counted = {
        (point.attributes["traced_tools.tool.decision"], point.attributes.get("traced_tools.advisor.name")): point.value
        for point in telemetry.metric("traced_tools.tool.decisions")
    }
    assert counted == {("allowed", None): 2, ("answered", "cache_tool"): 1}
    assert len(telemetry.named("refuse_tool count")) == 1


def test_a_result_expires(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(expiring, "time", SimpleNamespace(monotonic=lambda: now))
    counting, cache = Counting(), CacheToolAdvisor("count", seconds=10)
    assert [each.content for each in results(mode, [cache], counting, 1, 1)] == ["1", "1"]
    now = 109.9
    assert [each.content for each in results(mode, [cache], counting, 1)] == ["1"]
    now = 110.0
    assert [each.content for each in results(mode, [cache], counting, 1, 1)] == ["2", "2"]


def test_the_oldest_result_is_dropped_if_there_are_too_many() -> None:
    counting, cache = Counting(), CacheToolAdvisor("count", max_results=2)
    contents = [each.content for each in results("call", [cache], counting, "a", "b", "c", "b", "a")]
    assert contents == ["1", "2", "3", "2", "4"]


@pytest.mark.parametrize(
    ("tools", "annotations", "is_cached"),
    [
        ("count", ToolAnnotations(), True),
        ("*", ToolAnnotations(), False),
        ("*", ToolAnnotations(read_only=True), True),
        ("*", ToolAnnotations(idempotent=True), False),
        (["other", "c*"], ToolAnnotations(read_only=True), True),
        ("other", ToolAnnotations(read_only=True), False),
    ],
)
def test_a_pattern_chooses_read_only_tools_and_a_name_any_tool(
    tools: Any, annotations: ToolAnnotations, is_cached: bool
) -> None:
    counting = Counting(annotations)
    results("call", [CacheToolAdvisor(tools)], counting, 1, 1)
    assert counting.calls == (1 if is_cached else 2)


def test_a_failure_is_not_kept(mode: str) -> None:
    counting = Counting(error=ConnectionError())
    assert [each.outcome for each in results(mode, [CacheToolAdvisor("count")], counting, 1, 1)] == ["error", "error"]
    assert counting.calls == 2


def test_a_refusal_is_not_kept() -> None:
    class Refusing(Advisor):
        name, order = "refusing", 500

        async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
            return call.denied("no")

    cache = CacheToolAdvisor("count")
    found = results("call", [cache, Refusing()], Counting(), 1, 1)
    assert [(each.decision, each.advisor) for each in found] == [("denied", "refusing")] * 2


def test_a_cached_call_passes_the_audit_trail_and_the_policy(mode: str) -> None:
    policy = PolicyAdvisor(Policy([Rule("only-once", then="deny", agent="late")], default="allow"))
    counting, cache = Counting(), CacheToolAdvisor("count")
    trail = KeptTrail()
    advisors = [cache, policy, auditing(trail)]
    results(mode, advisors, counting, 1, 1)
    results(mode, advisors, counting, 1, name="late")
    assert trail.stories() == [
        ["intent count", "allowed", "ok"],
        ["intent count", "answered"],
        ["intent count", "denied"],
    ]


# With whom results are shared.


def test_principals_do_not_share_results(mode: str) -> None:
    counting, cache = Counting(), CacheToolAdvisor("count")
    for principal, content in [("ann", "1"), ("ben", "2"), (None, "3"), ("ann", "1"), (None, "3")]:
        (result,) = results(mode, [cache], counting, 1, asking={"principal": principal})
        assert result.content == content


def test_nested_runs_of_other_principals_do_not_share_results(mode: str) -> None:
    counting, cache = Counting(), CacheToolAdvisor("count")

    @tool
    def ask() -> str:
        """Ask another agent."""
        return results(mode, [cache], counting, "k")[0].content

    def answer(**asking: Any) -> str:
        model = ScriptedChatModel([ToolCall("ask"), "done"])
        return run("call", ChatClient(model, tools=[ask]).prompt("?", **asking)).tool_results[0].content

    assert [answer(principal=each) for each in ("ana", "bob", "ana")] == ["1", "2", "1"]


class Files:
    """The files of a person."""

    def __init__(self, owner: str) -> None:
        self.owner = owner

    @tool(annotations=ToolAnnotations(read_only=True))
    def count(self, key: str) -> str:
        """Count."""
        return f"{key} of {self.owner}"


class RemoteFiles:
    """A tool that implements the protocol itself."""

    definition = ToolDefinition(name="count", input_schema={"type": "object"})
    metadata = ToolMetadata(annotations=ToolAnnotations(read_only=True))

    def __init__(self, owner: str) -> None:
        self.owner = owner

    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        return f"key of {self.owner}"


@pytest.mark.parametrize("kind", [Files, RemoteFiles])
def test_tools_of_two_objects_do_not_share_results(mode: str, kind: Any) -> None:
    cache = CacheToolAdvisor("*")
    ana, bob = kind("ana"), kind("bob")
    found = []
    for tools in ([ana], [bob], [ana]):
        model = ScriptedChatModel([ToolCall("count", {"key": "key"}), "done"])
        [result] = run(mode, ChatClient(model, tools=tools, advisors=[cache]).prompt("?")).tool_results
        found.append((result.decision, result.content))
    assert found == [("allowed", "key of ana"), ("allowed", "key of bob"), ("answered", "key of ana")]


class Requiring(Advisor):
    """Requires approval of each call, or of none."""

    name = "requiring"

    def __init__(self, order: int, requires: bool = True) -> None:
        self.order, self.requires = order, requires

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        return await call_next(call.requiring_approval("check it") if self.requires else call)


@pytest.mark.parametrize("requires", ["the tool", "an outer advisor", "an inner advisor", "an outer advisor later"])
def test_nobody_gets_the_result_of_a_call_that_somebody_approved(mode: str, requires: str) -> None:
    cache, asked = CacheToolAdvisor("count"), []
    advisor = {
        "the tool": Requiring(500, requires=False),
        "an outer advisor": Requiring(cache.order - 1),
        "an inner advisor": Requiring(cache.order + 1),
        "an outer advisor later": Requiring(cache.order - 1, requires=False),
    }[requires]

    @tool(requires_approval=requires == "the tool")
    def count(key: str) -> str:
        """Count."""
        return "secret"

    def ask(request: ApprovalRequest) -> Approve | Reject:
        asked.append(request.call_id)
        return Approve() if len(asked) == 1 and requires != "an outer advisor later" else Reject("no")

    decisions = []
    for _ in range(2):
        model = ScriptedChatModel([ToolCall("count", {"key": "k"}), "done"])
        client = ChatClient(model, tools=[count], advisors=[cache, advisor, ApprovalAdvisor(ask)])
        decisions += [each.decision for each in run(mode, client.prompt("?")).tool_results]
        advisor.requires = requires != "the tool"
    assert decisions == ["allowed" if requires == "an outer advisor later" else "approved", "rejected"]


def test_a_scope_says_who_shares_results() -> None:
    counting, cache = Counting(), CacheToolAdvisor("count", scope=lambda call: call.context["tenant"])
    for principal, tenant, content in [("ann", "acme", "1"), ("ben", "acme", "1"), ("ann", "globex", "2")]:
        asking = {"principal": principal, "tool_context": {"tenant": tenant}}
        assert results("call", [cache], counting, 1, asking=asking)[0].content == content


def test_tools_with_another_definition_do_not_share_results() -> None:
    one, other, cache = Counting(), Counting(), CacheToolAdvisor("count")

    @tool(name="count")
    def another(key: Any = None) -> str:
        """Count, but differently."""
        return "another"

    assert results("call", [cache], one, 1)[0].content == "1"
    assert results("call", [cache], other, 1)[0].content == "1"
    other.tool = another
    assert results("call", [cache], other, 1)[0].content == "another"


# What equal arguments are.

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(), values, max_size=3),
    max_leaves=5,
).filter(lambda value: canonical_json(json.dumps(value)) is not None)


@given(st.tuples(VALUES, VALUES) | VALUES.map(lambda value: (value, json.loads(json.dumps(value)))))
def test_calls_share_a_result_exactly_if_their_canonical_arguments_are_the_same(values: tuple[Any, Any]) -> None:
    first, second = (canonical_json(json.dumps({"key": value})) for value in values)
    counting = Counting()
    results("call", [CacheToolAdvisor("count")], counting, *values)
    assert counting.calls == (1 if first == second else 2)


# Threads and secrets.


def test_threads_share_a_cache() -> None:
    wrong: list[str] = []

    @tool
    def echo(key: int) -> int:
        """Echo."""
        return key

    cache = CacheToolAdvisor("echo", max_results=3)

    def ask() -> None:
        for key in [*range(5)] * 5:
            model = ScriptedChatModel([ToolCall("echo", {"key": key}), "done"])
            (result,) = ChatClient(model, tools=[echo], advisors=[cache]).prompt("?").call().tool_results
            if result.content != str(key):
                wrong.append(result.content)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        in_time(thread.join)
    assert wrong == []
    assert repr(cache) == "<CacheToolAdvisor 'cache_tool': echo, 3 results, order 420>"


def test_neither_the_repr_nor_telemetry_shows_what_is_cached(mode: str, telemetry: Telemetry) -> None:
    @tool
    def secret(key: str) -> str:
        """Tell."""
        return f"{key} {MARKER}"

    cache = CacheToolAdvisor("secret")
    for _ in range(2):
        model = ScriptedChatModel([ToolCall("secret", {"key": MARKER}), "done"])
        client = ChatClient(model, tools=[secret], advisors=[cache], telemetry=telemetry.options)
        (result,) = run(mode, client.prompt("?")).tool_results
    assert result.decision == "answered"
    assert MARKER not in repr(cache) + repr(cache._results) + repr(vars(cache)) + repr(result)
    told = [*(each.to_json() for each in telemetry.spans), *(repr(each) for each in telemetry.metrics)]
    assert MARKER not in "".join(told)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"tools": None}, TypeError),
        ({"tools": []}, ConfigurationError),
        ({"tools": "a", "seconds": 0}, ValueError),
        ({"tools": "a", "seconds": "1"}, TypeError),
        ({"tools": "a", "max_results": 0}, ValueError),
        ({"tools": "a", "scope": "all"}, TypeError),
        ({"tools": "a", "name": None}, TypeError),
        ({"tools": "a", "order": None}, TypeError),
    ],
    ids=repr,
)
def test_wrong_settings_are_refused(settings: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        CacheToolAdvisor(**settings)
