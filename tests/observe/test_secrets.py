"""No content in anything that is exported, logged, printed or raised."""

from __future__ import annotations

import base64
import logging
import threading
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.markers import MARKER, everything
from tests.modes import MODES, run
from tests.observe.closed_list import APPLICATION, assert_consistent
from tests.observe.exported import Wiretap, holds_marker
from tests.observe.secrets import ESCAPED, POLICIES, SECRET_CALLS, TOOLS, secret_spec
from tests.sample_tools import add
from tests.sweeps import sweep
from traced_tools import (
    AssistantMessage,
    ChatClient,
    LoopLimitExceeded,
    LoopLimits,
    ToolCall,
    ToolExecutionError,
    UserMessage,
)
from traced_tools.errors import ToolNotFoundError
from traced_tools.models import ChatResponse
from traced_tools.observe import names
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolCallingManager

HOOKS_THAT_RAISE = ("advise", "advise_tool", "initialize", "before", "after", "finalize")


@pytest.fixture
def wiretap(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Wiretap]:
    monkeypatch.setattr("traced_tools.tools.retries.FIRST_PAUSE", 0.0)
    with Wiretap(caplog, capsys) as wiretap:
        yield wiretap


def run_in_secret(wiretap: Wiretap, mode: str, *scene: Any) -> BaseException | None:
    """Run below a span of the application's own, which records what is raised through it."""
    telemetry = wiretap.telemetry
    tracer = telemetry.tracer_provider.get_tracer(APPLICATION)
    spec = secret_spec(telemetry, *scene)
    try:
        with tracer.start_as_current_span("request"):
            wiretap.run(spec, mode)
    except Exception as error:
        return error
    return None


def check(wiretap: Wiretap) -> None:
    assert_consistent(wiretap.telemetry)
    wiretap.check()


@sweep(strength=1, mode=MODES, what=SECRET_CALLS, policy=POLICIES)
def test_no_content_is_exported_logged_or_raised(wiretap: Wiretap, mode: str, what: str, policy: str) -> None:
    error = run_in_secret(wiretap, mode, what, policy, "", LoopLimits())
    passes = what == "model" or (what, policy) == ("unsayable", "message")
    if passes:  # an exception of the model's own, or of the application's `message`, is raised unchanged
        assert type(error) is (RuntimeError if what == "model" else ValueError)
        wiretap.telemetry.leave_out("request")
    check(wiretap)
    if error is not None and not passes:
        assert isinstance(error, ToolExecutionError | ToolNotFoundError)
        assert not holds_marker((str(error) + repr(error) + printed(error)).encode())
    assert (error is not None) == (passes or what in raising(policy))


def printed(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def raising(policy: str) -> set[str]:
    failures = {"failure", "two failures", "failure beside a success", "mended", "converter", "iterator"}
    failures |= {"remote failure", "awaited", "escaped", "undecodable"}
    others = {"entangled", "unsayable", "retried", "unknown", "time-out"}
    invalid = {"invalid", "no JSON", "validator", "schema", "uncheckable"}
    invalid |= {"reasoned badly", "reasoned without a tool's argument"}
    return {"raise": {*failures, *invalid, *others}, "raise on": failures}.get(policy, set())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("raises_in", [*HOOKS_THAT_RAISE, "denies", "answers", "changes"])
def test_no_text_of_an_advisor_is_exported(wiretap: Wiretap, mode: str, raises_in: str) -> None:
    error = run_in_secret(wiretap, mode, "result", "answer", raises_in, LoopLimits())
    if raises_in in HOOKS_THAT_RAISE:
        assert isinstance(error, LookupError)
        wiretap.telemetry.leave_out("request")  # an advisor's own exception passes unchanged
    else:
        assert error is None
    check(wiretap)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("on_limit", ["conclude", "stop", "raise"])
def test_no_content_is_exported_when_a_limit_is_broken(wiretap: Wiretap, mode: str, on_limit: Any) -> None:
    limits = LoopLimits(max_iterations=1, on_limit=on_limit)
    error = run_in_secret(wiretap, mode, "text beside", "answer", "", limits)
    assert isinstance(error, LoopLimitExceeded) == (on_limit == "raise")
    if error is not None:
        assert not holds_marker((printed(error) + repr(error)).encode())
    check(wiretap)


@pytest.mark.parametrize("policy", ["answer", "raise"])
@pytest.mark.parametrize("what", [what for what in SECRET_CALLS if what not in ("model", "text beside")])
def test_no_content_of_calls_performed_by_hand_is_exported_logged_or_raised(
    wiretap: Wiretap, what: str, policy: str
) -> None:
    calls = SECRET_CALLS[what] if isinstance(SECRET_CALLS[what], list) else [SECRET_CALLS[what]]
    answer = ChatResponse(AssistantMessage(calls))
    options, errors = wiretap.telemetry.options, POLICIES[policy]
    try:
        ToolCallingManager().execute_tool_calls(
            [UserMessage(MARKER)], answer, tools=TOOLS, tool_errors=errors, telemetry=options
        )
    except (ToolExecutionError, ToolNotFoundError) as error:
        assert not holds_marker(printed(error).encode())
        assert what in raising(policy)
    check(wiretap)


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_error_that_raises_names_the_tool_and_the_kind_and_carries_the_original(
    wiretap: Wiretap, mode: str
) -> None:
    error = run_in_secret(wiretap, mode, "failure", "raise", "", LoopLimits())
    assert isinstance(error, ToolExecutionError)
    assert "rejected" in str(error)
    assert "ValueError" in str(error)
    assert MARKER in str(error.original)
    assert error.__cause__ is None
    (request,) = wiretap.telemetry.named("request")
    assert [event.name for event in request.events] == ["exception"]


@pytest.mark.parametrize("mode", MODES)
def test_a_name_the_model_invented_appears_nowhere(telemetry: Telemetry, mode: str) -> None:
    client = ChatClient(ScriptedChatModel([ToolCall(MARKER), "ok"]), tools=[add], telemetry=telemetry.options)
    run(mode, client.prompt("?"))
    assert telemetry.one(f"refuse_tool {names.UNKNOWN_TOOL}").attributes
    assert not [span for span in telemetry.spans if MARKER in span.to_json()]
    assert MARKER not in everything([[each.name, each.attributes] for each in telemetry.metrics])
    assert MARKER not in everything([each.attributes for each in telemetry.events])


# The search itself.


@pytest.mark.parametrize(
    "data",
    [
        MARKER.encode(),
        f"…{MARKER}…".upper().encode(),
        f'{{"a": "{ESCAPED}"}}'.encode(),
        MARKER.encode("utf-16"),
        f"x{MARKER}".encode("utf-16-be"),
        MARKER.encode("utf-32-le"),
        repr(f"…{MARKER}".encode("utf-16-le")).encode(),
        f"xyz{MARKER}".encode().hex().encode(),
        *(base64.b64encode(b"?" * before + MARKER.encode() + b"\xfb" * 5) for before in range(4)),
        *(base64.urlsafe_b64encode(b"?" * before + MARKER.encode() + b"\xfb" * 5) for before in range(4)),
    ],
)
def test_the_search_finds_the_marker_in_every_encoding(data: bytes) -> None:
    assert holds_marker(data)


def test_the_search_does_not_find_parts_of_the_marker() -> None:
    assert not holds_marker(f"{MARKER[:-1]} {ESCAPED[:-1]} {MARKER[1:]}".encode())


@pytest.mark.parametrize("where", ["span", "metric", "event", "log", "print", "thread", "warning"])
def test_a_leak_is_found_in_every_output(wiretap: Wiretap, where: str) -> None:
    run_in_secret(wiretap, "call", "result", "answer", "", LoopLimits())
    leak(wiretap.telemetry, where)
    with pytest.raises(AssertionError):
        wiretap.check()


def leak(telemetry: Telemetry, where: str) -> None:
    if where == "span":
        telemetry.tracer_provider.get_tracer(APPLICATION).start_span("x", attributes={"x": MARKER}).end()
    elif where == "metric":
        telemetry.meter_provider.get_meter(APPLICATION).create_counter("x").add(1, {"x": MARKER})
    elif where == "event":
        telemetry.logger_provider.get_logger(APPLICATION).emit(event_name="x", body={"x": [MARKER]})
    elif where == "log":
        logging.getLogger("traced_tools").debug("failed: %s", MARKER)
    elif where == "print":
        print(MARKER)
    elif where == "warning":
        warnings.warn(MARKER, stacklevel=1)
    else:
        thread = threading.Thread(target=int, args=(MARKER,))
        thread.start()
        thread.join()
