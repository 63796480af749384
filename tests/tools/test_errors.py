"""What can go wrong with a call, and what the error policy makes of it: the same for every kind of tool."""

from __future__ import annotations

import asyncio
import logging
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.markers import MARKER
from tests.modes import MODES, run
from tests.sweeps import sweep
from tests.tools.schema.kinds import ASYNC_KINDS, KINDS, acting, noting
from traced_tools import AssistantMessage, ChatClient, ToolCall, ToolExecutionError, UserMessage
from traced_tools.core import ToolCallback, ToolErrors, ToolMetadata
from traced_tools.errors import InvalidArguments, ToolNotFoundError, ToolTimeout
from traced_tools.models import ChatResponse
from traced_tools.observe import names
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolCallingManager

MISTAKES = ("exception", "time-out", "invalid", "malformed", "missing", "unknown")
ARGUMENTS = {
    "invalid": '{"text": ["mArKeR-7f3a"]}',
    "malformed": '{"text": "mArKeR-7f3a"',
    "missing": '{"count": 1}',
    "unknown": '{"text": "x", "colour": "mArKeR-7f3a"}',
}
TEXTS = {
    "exception": f"The tool note failed: OSError: {MARKER}",
    "time-out": "The tool note failed: ToolTimeout: the tool took longer than its time-out of 0.005",
    "invalid": "The arguments are invalid: text: must be a string. Correct them and call the tool again.",
    "malformed": "The arguments are invalid: arguments: not valid JSON: ",
    "missing": "The arguments are invalid: text: is required. Correct them and call the tool again.",
    "unknown": "The arguments are invalid: colour: is not a known field",
}
CLASSES = {"exception": OSError, "time-out": ToolTimeout}


class Kit:
    """Makes tools that go wrong in a given way, and lets those that hang go on in the end."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.called = 0

    def tool(self, kind: str, mistake: str) -> ToolCallback:
        metadata = ToolMetadata(timeout=0.005 if mistake == "time-out" else None)
        if mistake == "time-out":
            return noting(kind, self._hang if kind in ASYNC_KINDS else self._block, metadata)
        return noting(kind, acting(kind, self._act(mistake)), metadata)

    def _act(self, mistake: str) -> Callable[[Any], Any]:
        def act(given: Any) -> str:
            self.called += 1
            if mistake == "exception":
                raise OSError(MARKER)
            return "noted"

        return act

    async def _hang(self, given: Any) -> None:
        self.called += 1
        await asyncio.Event().wait()

    def _block(self, given: Any) -> None:
        self.called += 1
        self.over.wait(10)


@pytest.fixture
def kit() -> Iterator[Kit]:
    kit = Kit()
    yield kit
    kit.over.set()


def asking(kit: Kit, kind: str, mistake: str, **settings: Any) -> ChatClient:
    model = ScriptedChatModel([ToolCall("note", ARGUMENTS.get(mistake, '{"text": "x"}')), "done"])
    return ChatClient(model, tools=[kit.tool(kind, mistake)], **settings)


def class_of(mistake: str) -> type[Exception]:
    return CLASSES.get(mistake, InvalidArguments)


each_mode = pytest.mark.parametrize("mode", MODES)


@sweep(mode=MODES, kind=KINDS, mistake=MISTAKES)
def test_by_default_a_mistake_is_sent_to_the_model_and_the_run_goes_on(
    mode: str, kind: str, mistake: str, kit: Kit, telemetry: Telemetry
) -> None:
    response = run(mode, asking(kit, kind, mistake, telemetry=telemetry.options).prompt("?"))
    (result,) = response.tool_results
    assert response.content == "done"
    assert result.content.startswith(TEXTS[mistake])
    assert isinstance(result.error, class_of(mistake))
    assert kit.called == (mistake not in ARGUMENTS)
    outcome = {"exception": "error", "time-out": "timeout"}.get(mistake)
    decision = "invalid_arguments" if mistake in ARGUMENTS else "allowed"
    kind_of_error = {"exception": "OSError", "time-out": "timeout"}.get(mistake, "invalid_arguments")
    assert (result.outcome, result.decision, result.error_type) == (outcome, decision, kind_of_error)
    attributes = telemetry.one(f"{'refuse' if mistake in ARGUMENTS else 'execute'}_tool note").attributes or {}
    labels = (names.TOOL_OUTCOME, names.TOOL_DECISION, names.ERROR_TYPE)
    assert tuple(attributes.get(name) for name in labels) == (outcome, decision, kind_of_error)
    telemetry.check_each_ended_once()
    telemetry.check_run("answered")


@sweep(mode=MODES, kind=KINDS, mistake=MISTAKES, policy=["always", "its class", "Exception"])
def test_a_policy_that_raises_does_so_for_every_mistake_of_every_tool(
    mode: str, kind: str, mistake: str, policy: str, kit: Kit
) -> None:
    errors = {
        "always": ToolErrors(always_raise=True),
        "its class": ToolErrors(raise_on=(KeyError, class_of(mistake))),
        "Exception": ToolErrors(raise_on=(Exception,)),
    }[policy]
    with pytest.raises(ToolExecutionError) as caught:
        run(mode, asking(kit, kind, mistake, tool_errors=errors).prompt("?"))
    error = caught.value
    kind_of_error = {"exception": "OSError", "time-out": "timeout"}.get(mistake, "invalid_arguments")
    assert (error.tool, error.error_type) == ("note", kind_of_error)
    assert str(error) == f"the tool note failed with {kind_of_error}; the exception is on .original"
    assert isinstance(error.original, class_of(mistake))
    assert (error.__cause__, error.__context__) == (None, None)
    assert MARKER not in "".join(traceback.format_exception(error))


@sweep(mode=["call", "astream"], kind=KINDS, mistake=MISTAKES)
def test_an_error_of_an_unlisted_class_is_sent_to_the_model(mode: str, kind: str, mistake: str, kit: Kit) -> None:
    errors = ToolErrors(raise_on=(KeyError, ValueError, PermissionError))
    response = run(mode, asking(kit, kind, mistake, tool_errors=errors).prompt("?"))
    assert response.content == "done"
    assert response.tool_results[0].content.startswith(TEXTS[mistake])


@sweep(mode=["call", "astream"], kind=KINDS, mistake=MISTAKES)
def test_the_callers_message_is_sent_to_the_model_for_every_mistake(
    mode: str, kind: str, mistake: str, kit: Kit
) -> None:
    errors = ToolErrors(message=lambda name, error: f"{name}: {type(error).__name__}")
    (result,) = run(mode, asking(kit, kind, mistake, tool_errors=errors).prompt("?")).tool_results
    assert result.content == f"note: {class_of(mistake).__name__}"
    assert result.part().is_error


# a time-out is the loop's, and a tool of the user's own does as it likes
@pytest.mark.parametrize("mistake", [each for each in MISTAKES if each != "time-out"])
@pytest.mark.parametrize("kind", [each for each in KINDS if not each.startswith("own")])
def test_a_tool_that_is_called_directly_raises_its_error(kind: str, mistake: str, kit: Kit) -> None:
    tool = kit.tool(kind, mistake)
    with pytest.raises(class_of(mistake)) as caught:
        tool.call(ARGUMENTS.get(mistake, '{"text": "x"}'))
    if mistake in ARGUMENTS:
        assert MARKER not in "".join(traceback.format_exception(caught.value))


# A `message` that goes wrong itself.


def no_text(name: str, error: Exception) -> Any:
    return 5


def faulty(name: str, error: Exception) -> str:
    raise ZeroDivisionError("of the application")


@sweep(mode=MODES, mistake=MISTAKES, message=[no_text, faulty])
def test_a_message_that_fails_fails_the_run_with_its_own_error_and_every_span_ends(
    mode: str, mistake: str, message: Any, kit: Kit, telemetry: Telemetry
) -> None:
    kind_of_error = TypeError if message is no_text else ZeroDivisionError
    client = asking(kit, "function", mistake, tool_errors=ToolErrors(message=message), telemetry=telemetry.options)
    with pytest.raises(kind_of_error) as caught:
        run(mode, client.prompt("?"))
    assert MARKER not in "".join(traceback.format_exception(caught.value))
    telemetry.check_each_ended_once()
    telemetry.check_run("error", kind_of_error.__name__)
    span = telemetry.one(f"{'refuse' if mistake in ARGUMENTS else 'execute'}_tool note")
    expected = "invalid_arguments" if mistake in ARGUMENTS else kind_of_error.__name__
    assert (span.attributes or {})[names.ERROR_TYPE] == expected
    decision = "invalid_arguments" if mistake in ARGUMENTS else "allowed"
    assert (span.attributes or {})[names.TOOL_DECISION] == decision


# The policy by itself.


def test_an_error_policy_is_checked_when_it_is_made() -> None:
    with pytest.raises(TypeError, match="raise_on"):
        ToolErrors(raise_on=("ValueError",))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="raise_on"):
        ToolErrors(raise_on=(KeyboardInterrupt,))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown_tool"):
        ToolErrors(unknown_tool="ignore")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="message"):
        ToolErrors(message="sorry")  # type: ignore[arg-type]


def test_a_policy_raises_for_its_classes_and_their_subclasses() -> None:
    errors = ToolErrors(raise_on=(OSError,))
    assert errors.raises(PermissionError())
    assert not errors.raises(ValueError())
    assert ToolErrors(always_raise=True).raises(ValueError())
    assert not ToolErrors().raises(ValueError())


class QuietError(Exception):
    """Says nothing."""


@pytest.mark.parametrize("error", [ValueError(), ValueError(""), ValueError(" \n"), QuietError()], ids=repr)
def test_an_error_without_a_message_is_named_by_tool_and_class(error: Exception) -> None:
    assert ToolErrors().text("note", error) == f"The tool note failed: {type(error).__name__}"


def test_the_message_of_an_error_is_sent_to_the_model() -> None:
    assert ToolErrors().text("note", ValueError("no disk")) == "The tool note failed: ValueError: no disk"
    assert ToolErrors().text("note", KeyError("disk")) == "The tool note failed: KeyError: 'disk'"


@pytest.mark.parametrize("raised", [PermissionError(), FileNotFoundError(), OSError()], ids=repr)
def test_a_listed_class_covers_its_subclasses(raised: Exception) -> None:
    assert ToolErrors(raise_on=(OSError,)).raises(raised)


def test_a_listed_subclass_does_not_cover_its_base_class() -> None:
    assert not ToolErrors(raise_on=(PermissionError,)).raises(OSError())


def test_invalid_arguments_are_no_value_error_and_a_time_out_is_a_timeout_error() -> None:
    assert not ToolErrors(raise_on=(ValueError,)).raises(InvalidArguments("a: is required"))
    assert ToolErrors(raise_on=(TimeoutError,)).raises(ToolTimeout(1.0))


def test_the_text_of_invalid_arguments_repeats_nothing() -> None:
    error = InvalidArguments(f"{MARKER}: is not a known field")
    assert error.problems == f"{MARKER}: is not a known field"
    assert MARKER not in str(error) + repr(error)


# B125: Python has no checked exceptions, so that one rule stands for all of them.


@pytest.mark.parametrize("kind", [Exception, RuntimeError, OSError, ExceptionGroup, StopIteration, QuietError])
@each_mode
def test_all_exceptions_are_alike(mode: str, kind: type[Exception], kit: Kit) -> None:
    def note() -> None:
        """Fail."""
        raise ExceptionGroup("two", [ValueError()]) if kind is ExceptionGroup else kind()

    client = ChatClient(ScriptedChatModel([ToolCall("note"), "done"]), tools=[note])
    assert run(mode, client.prompt("?")).content == "done"


class Fatal(BaseException):
    """Not for anybody to handle."""


@each_mode
def test_a_base_exception_passes_the_policy_unchanged(mode: str, telemetry: Telemetry) -> None:
    def note() -> None:
        """End everything."""
        raise Fatal

    client = ChatClient(ScriptedChatModel([ToolCall("note")]), tools=[note], telemetry=telemetry.options)
    with pytest.raises(Fatal):
        run(mode, client.prompt("?"))
    telemetry.check_each_ended_once()


@each_mode
def test_a_client_sends_errors_to_the_model_unless_its_policy_raises(mode: str, kit: Kit) -> None:
    client = asking(kit, "function", "exception")
    raising = asking(kit, "function", "exception", tool_errors=ToolErrors(always_raise=True))
    assert run(mode, client.prompt("?")).content == "done"
    with pytest.raises(ToolExecutionError):
        run(mode, raising.prompt("?"))
    again = asking(kit, "function", "exception", tool_errors=ToolErrors(always_raise=True))
    assert run(mode, again.prompt("?", tool_errors=ToolErrors())).content == "done"


@each_mode
def test_a_custom_policy_replaces_the_default(mode: str, kit: Kit) -> None:
    class Lenient(ToolErrors):
        """Raises for nothing, and says little."""

        def raises(self, error: Exception) -> bool:
            return False

        def text(self, tool: str, error: Exception) -> str:
            return "sorry"

    client = asking(kit, "function", "exception", tool_errors=Lenient(always_raise=True))
    assert run(mode, client.prompt("?")).tool_results[0].content == "sorry"


@pytest.mark.parametrize("hand", ["execute_tool_calls", "aexecute_tool_calls"])
def test_a_policy_that_raises_names_no_content_by_hand(hand: str, kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    asked = ChatResponse(AssistantMessage(tool_calls=[ToolCall("note", ARGUMENTS["invalid"], id="1")]))
    execute = getattr(ToolCallingManager(), hand)
    with pytest.raises(ToolExecutionError) as caught:
        result = execute(
            [UserMessage("?")],
            asked,
            tools=[kit.tool("own", "invalid")],
            tool_errors=ToolErrors(always_raise=True),
        )
        asyncio.run(result)
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)
    assert MARKER not in "".join(traceback.format_exception(caught.value)) + caplog.text


@each_mode
def test_an_unknown_name_is_raised_without_repeating_it(mode: str) -> None:
    client = ChatClient(ScriptedChatModel([ToolCall(MARKER)]), tool_errors=ToolErrors(unknown_tool="raise"))
    with pytest.raises(ToolNotFoundError) as caught:
        run(mode, client.prompt("?"))
    assert MARKER not in "".join(traceback.format_exception(caught.value))
