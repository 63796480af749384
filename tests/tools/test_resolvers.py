"""Tools resolved by name: in `tools=`, and when a model calls one that is not in the request."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.modes import MODES, run
from tests.sample_tools import add, direct
from tests.stable_ids import stable_id
from traced_tools import AssistantMessage, ChatClient, ToolCall, UserMessage, tool
from traced_tools.core import ToolCallback, ToolCallbackResolver, ToolErrors, ToolExecutionResult
from traced_tools.errors import ToolDefinitionError, ToolNotFoundError
from traced_tools.models import ChatResponse
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import (
    DelegatingToolCallbackResolver,
    EntryPointToolCallbackResolver,
    FunctionToolCallback,
    StaticToolCallbackResolver,
    ToolCallingManager,
)

HANDS = ("execute_tool_calls", "aexecute_tool_calls")


def carried() -> str:
    """Be there."""
    return "here"


class Asked(StaticToolCallbackResolver):
    """Records the names to resolve."""

    def __init__(self, *tools: Any) -> None:
        super().__init__(tools)
        self.names: list[str] = []

    def resolve(self, name: str) -> ToolCallback | None:
        self.names.append(name)
        return super().resolve(name)


def by_hand(
    how: str, manager: ToolCallingManager, calls: list[ToolCall], tools: Any, **more: Any
) -> ToolExecutionResult:
    response = ChatResponse(AssistantMessage(tool_calls=calls))
    execute = getattr(manager, how)
    result = execute((UserMessage("?"),), response, tools=tools, **more)
    return asyncio.run(result) if how == "aexecute_tool_calls" else result  # type: ignore[no-any-return]


# Names in `tools=`.


@pytest.mark.parametrize("mode", MODES)
def test_a_name_is_resolved_by_the_applications_resolver(mode: str) -> None:
    resolver = Asked(add, direct)
    assert isinstance(resolver, ToolCallbackResolver)
    model = ScriptedChatModel([ToolCall("add", {"a": 1, "b": 2}), "three"])
    client = ChatClient(model, tools=[carried, ["add"]], resolver=resolver)
    assert run(mode, client.prompt("?")).tool_results[0].content == "3"
    assert [each.name for each in model.requests[0].tools] == ["carried", "add"]
    assert resolver.names == ["add"]


@pytest.mark.parametrize("mode", MODES)
def test_a_provider_may_return_names(mode: str) -> None:
    class Provider:
        def tool_callbacks(self) -> Any:
            return ["add", [direct]]

    model = ScriptedChatModel(["x"])
    run(mode, ChatClient(model, resolver=Asked(add)).prompt("?", tools=Provider()))
    assert [each.name for each in model.requests[0].tools] == ["add", "direct"]
    with pytest.raises(ToolNotFoundError, match="'add', which cannot be resolved: pass resolver="):
        run(mode, ChatClient(ScriptedChatModel([])).prompt("?", tools=Provider()))


@pytest.mark.parametrize("name", ["subtract", "", "Add", "add "])
def test_an_unknown_name_is_refused_when_it_is_passed(name: str) -> None:
    client = ChatClient(ScriptedChatModel([]), resolver=Asked(add))
    unresolved = f"the name '{name}', which cannot be resolved: the resolver does not find it"
    with pytest.raises(ToolNotFoundError, match=unresolved):
        client.prompt("?", tools=[name])
    with pytest.raises(ToolNotFoundError):
        client.replace(tools=name)
    with pytest.raises(ToolNotFoundError):
        by_hand("execute_tool_calls", ToolCallingManager(resolver=Asked(add)), [ToolCall("add")], [name])


def test_a_resolver_that_returns_another_type_is_named_in_the_error() -> None:
    class Wrong:
        def resolve(self, name: str) -> Any:
            return add

    with pytest.raises(
        TypeError, match="what the resolver returns for 'add' must be a ToolCallback or None, not function"
    ):
        ChatClient(ScriptedChatModel([]), resolver=Wrong()).prompt("?", tools="add")


def test_a_name_beside_the_tool_itself_is_a_duplicate() -> None:
    with pytest.raises(ToolDefinitionError, match="given more than once: add"):
        ChatClient(ScriptedChatModel([]), resolver=Asked(add), tools=[add, "add"])


@pytest.mark.parametrize("how", HANDS)
def test_names_are_resolved_by_hand_too(how: str) -> None:
    manager = ToolCallingManager(resolver=Asked(add))
    result = by_hand(how, manager, [ToolCall("add", {"a": 1, "b": 2})], ["add"])
    assert [each.content for each in result.results] == ["3"]


# Names that a model makes up.


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_outside_the_request_is_not_resolved_by_default(mode: str) -> None:
    resolver, model = Asked(add), ScriptedChatModel([ToolCall("add", {"a": 1, "b": 2}), "x"])
    (result,) = run(mode, ChatClient(model, tools=carried, resolver=resolver).prompt("?")).tool_results
    assert (result.decision, resolver.names) == ("unknown_tool", [])
    assert "add" not in result.content


@pytest.mark.parametrize("mode", MODES)
def test_with_the_fallback_a_tool_outside_the_request_runs_and_is_traced_by_name(mode: str) -> None:
    telemetry, resolver = Telemetry(), Asked(FunctionToolCallback(add, name="math.add"))
    calls = [ToolCall("math.add", {"a": 1, "b": 2}), ToolCall("carried"), ToolCall("nowhere")]
    model = ScriptedChatModel([calls, "x"])
    client = ChatClient(model, tools=carried, resolver=resolver, resolver_fallback=True, telemetry=telemetry.options)
    response = run(mode, client.prompt("?"))
    assert [each.decision for each in response.tool_results] == ["allowed", "allowed", "unknown_tool"]
    assert [each.content for each in response.tool_results[:2]] == ["3", "here"]
    assert resolver.names == ["math.add", "nowhere"]
    assert len(telemetry.named("execute_tool math.add")) == len(telemetry.named("execute_tool carried")) == 1
    assert [[each.name for each in request.tools] for request in model.requests] == [["carried"]] * 2


@pytest.mark.parametrize("how", HANDS)
def test_the_fallback_works_by_hand_too(how: str) -> None:
    for fallback, decision in ((True, "allowed"), (False, "unknown_tool")):
        manager = ToolCallingManager(resolver=Asked(add), resolver_fallback=fallback)
        (result,) = by_hand(how, manager, [ToolCall("add", {"a": 1, "b": 2})], []).results
        assert result.decision == decision


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_from_the_fallback_may_return_directly(mode: str) -> None:
    model = ScriptedChatModel([ToolCall("direct", {"text": "hi"})])
    client = ChatClient(model, resolver=Asked(direct), resolver_fallback=True)
    response = run(mode, client.prompt("?"))
    assert (response.stop_reason, response.content) == ("return_direct", "hi")


@pytest.mark.parametrize("mode", MODES)
def test_a_sequential_tool_from_the_fallback_runs_alone(mode: str) -> None:
    at_once: list[int] = []
    under_way: set[str] = set()

    def note(name: str) -> str:
        under_way.add(name)
        at_once.append(len(under_way))
        under_way.discard(name)
        return name

    alone = tool(name="alone", sequential=True)(lambda: note("alone"))
    model = ScriptedChatModel([[ToolCall("beside"), ToolCall("alone"), ToolCall("beside")], "x"])
    beside = tool(name="beside")(lambda: note("beside"))
    client = ChatClient(model, tools=beside, resolver=Asked(alone), resolver_fallback=True)
    response = run(mode, client.prompt("?"))
    assert [each.content for each in response.tool_results] == ["beside", "alone", "beside"]
    assert at_once == [1, 1, 1]


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_that_the_fallback_does_not_find_may_fail_the_run(mode: str) -> None:
    model = ScriptedChatModel([ToolCall("nowhere")])
    errors = ToolErrors(unknown_tool="raise")
    client = ChatClient(model, resolver=Asked(add), resolver_fallback=True, tool_errors=errors)
    with pytest.raises(ToolNotFoundError):
        run(mode, client.prompt("?"))


@pytest.mark.parametrize("mode", MODES)
def test_an_exception_of_the_fallback_passes_unchanged(mode: str) -> None:
    class Failing:
        def resolve(self, name: str) -> ToolCallback | None:
            raise LookupError("the registry is away")

    client = ChatClient(ScriptedChatModel([ToolCall("add")]), resolver=Failing(), resolver_fallback=True)
    with pytest.raises(LookupError, match="the registry is away"):
        run(mode, client.prompt("?"))


# The resolvers.


def test_the_first_resolver_that_finds_a_name_is_used() -> None:
    first, second = Asked(add), Asked(tool(name="add")(lambda: 0), direct)
    both = DelegatingToolCallbackResolver([first, second])
    found = both.resolve("add")
    assert found is not None
    assert found is first.resolve("add")
    assert both.resolve("direct") is second.resolve("direct")
    assert both.resolve("nowhere") is None
    assert first.names == ["add", "add", "direct", "nowhere"]
    assert DelegatingToolCallbackResolver(iter([])).resolve("add") is None


@pytest.mark.parametrize("wrong", [5, None, [add], [None], "add"], ids=stable_id)
def test_delegating_needs_resolvers(wrong: Any) -> None:
    with pytest.raises(TypeError, match="resolvers"):
        DelegatingToolCallbackResolver(wrong)


@pytest.mark.parametrize("wrong", [5, add, "static"], ids=stable_id)
def test_an_object_without_resolve_is_not_a_resolver(wrong: Any) -> None:
    for make in (lambda: ChatClient(ScriptedChatModel([]), resolver=wrong), lambda: ToolCallingManager(resolver=wrong)):
        with pytest.raises(TypeError, match="resolver must be a ToolCallbackResolver or None"):
            make()


def test_a_static_resolver_accepts_anything_that_tools_accepts_with_unique_names() -> None:
    own = FunctionToolCallback(add, name="own")
    assert StaticToolCallbackResolver([own, [direct]]).resolve("own") is own
    with pytest.raises(ToolDefinitionError, match="given more than once: add"):
        StaticToolCallbackResolver([add, [add]])
    with pytest.raises(ToolDefinitionError, match="is not a tool"):
        StaticToolCallbackResolver(None)


# Entry points.

MODULE = '''
from traced_tools import tool

@tool(name="weather.now")
def now(city: str) -> str:
    """Return the weather."""
    return f"rain in {city}"

class Desk:
    @tool
    def open_desk(self) -> str:
        """Open."""
        return "open"
'''


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution with entry points, as if it were installed."""
    (tmp_path / "fake_weather.py").write_text(MODULE, "utf-8")
    (tmp_path / "fake_broken.py").write_text("import fake_nothing_of_that_name", "utf-8")
    about = tmp_path / "fake_weather-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-weather\nVersion: 1.0\n", "utf-8")
    groups = "[traced_tools.tools]\nweather.now = fake_weather:now\nopen_desk = fake_weather:Desk.open_desk\n"
    groups += (
        "misnamed = fake_weather:now\nmodule = fake_weather\nbroken = fake_broken:now\nmissing = fake_weather:nowhere\n"
    )
    groups += "class = fake_weather:Desk\n[elsewhere]\nweather.now = fake_weather:now\n"
    (about / "entry_points.txt").write_text(groups, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("fake_weather", "fake_broken"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("mode", MODES)
def test_a_tool_of_an_entry_point_is_imported_when_it_is_resolved(mode: str) -> None:
    resolver = EntryPointToolCallbackResolver()
    model = ScriptedChatModel([ToolCall("weather.now", {"city": "Bonn"}), "x"])
    client = ChatClient(model, resolver=resolver)
    assert resolver.resolve("nowhere") is None
    assert "fake_weather" not in sys.modules
    response = run(mode, client.prompt("?", tools=["weather.now"]))
    assert response.tool_results[0].content == "rain in Bonn"
    assert resolver.resolve("weather.now") is resolver.resolve("weather.now")


@pytest.mark.usefixtures("installed")
def test_a_custom_entry_point_group_is_used_instead() -> None:
    resolver = EntryPointToolCallbackResolver("elsewhere")
    assert resolver.resolve("weather.now") is not None
    assert resolver.resolve("misnamed") is None
    with pytest.raises(TypeError, match="group must be a str"):
        EntryPointToolCallbackResolver(None)  # type: ignore[arg-type]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "misnamed",
            "the entry point 'misnamed' refers to fake_weather:now, which has the tools weather.now: rename it",
        ),
        ("module", "fake_weather is not a tool"),
        ("class", "Desk is not a tool.*this is a class"),
        ("open_desk", "is a method of a class"),
    ],
)
def test_an_entry_point_without_a_tool_of_its_name_is_refused(name: str, says: str) -> None:
    with pytest.raises(ToolDefinitionError, match=says):
        EntryPointToolCallbackResolver().resolve(name)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("name", "error"), [("broken", ModuleNotFoundError), ("missing", AttributeError)])
def test_a_failed_import_is_raised_unchanged_and_retried_next_time(name: str, error: type[Exception]) -> None:
    resolver = EntryPointToolCallbackResolver()
    for _ in range(2):
        with pytest.raises(error):
            ChatClient(ScriptedChatModel([]), tools=[name], resolver=resolver)


class Renaming:
    """Resolves every name to a tool with one fixed name."""

    def resolve(self, name: str) -> ToolCallback:
        return FunctionToolCallback(lambda: "ran", name="known")


def test_a_resolved_tool_with_another_name_is_refused() -> None:
    with pytest.raises(ToolDefinitionError, match=r"a tool with another name for .other.: .known."):
        ChatClient(ScriptedChatModel([]), tools=["other"], resolver=Renaming())


@pytest.mark.parametrize("mode", MODES)
def test_an_invented_name_is_not_a_tool_whatever_the_resolver_returns(mode: str) -> None:
    model = ScriptedChatModel([[ToolCall("other"), ToolCall("kn.own"), ToolCall("known")], "x"])
    client = ChatClient(model, tools=tool(name="kn_own")(lambda: "own"), resolver=Renaming(), resolver_fallback=True)
    results = run(mode, client.prompt("?")).tool_results
    assert [each.decision for each in results] == ["unknown_tool", "unknown_tool", "allowed"]
