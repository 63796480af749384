"""Captured content is only where capture is configured; secrets that are not content are nowhere."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from tests.observe.closed_list import APPLICATION, assert_consistent
from tests.observe.exported import Search, Wiretap, found_in, holds_marker
from tests.observe.secrets import CONTEXT, SECRET_CALLS, secret_spec
from tests.sweeps import sweep
from traced_tools import LoopLimits, ToolExecutionError
from traced_tools.errors import ToolNotFoundError

CARRIERS = {"SPAN_ONLY": {"spans"}, "EVENT_ONLY": {"events"}, "SPAN_AND_EVENT": {"spans", "events"}}
PASSES = (RuntimeError, LookupError)
"""What a model or an advisor raises passes unchanged."""


@pytest.fixture
def wiretap(
    capture: str,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Wiretap]:
    monkeypatch.setattr("traced_tools.tools.retries.FIRST_PAUSE", 0.0)
    with Wiretap(caplog, capsys, capture=capture) as wiretap:
        yield wiretap


def run_captured(wiretap: Wiretap, mode: str, what: str, policy: str, raises_in: str) -> BaseException | None:
    """Run below a span of the application's own, which must record no content of a tool's."""
    spec: Any = secret_spec(wiretap.telemetry, what, policy, raises_in, LoopLimits())
    error: BaseException | None = None
    span = wiretap.telemetry.tracer_provider.get_tracer(APPLICATION).start_span("request")
    try:
        wiretap.run(spec, mode)
    except Exception as raised:
        error = raised
        if not isinstance(raised, PASSES):
            span.record_exception(raised)
    span.end()
    return error


def check(wiretap: Wiretap) -> None:
    assert_consistent(wiretap.telemetry)
    exported = wiretap.exported()
    assert found_in(exported, Search(CONTEXT)) == []
    found = found_in(exported, holds_marker)
    carriers = {where.partition(":")[0] for where in found} - {"logging"}  # has the traceback of a tool that fails
    assert carriers == CARRIERS[wiretap.telemetry.capture]
    assert "spans: request" not in found


@sweep(strength=1, capture=CARRIERS, mode=["call", "astream"], what=SECRET_CALLS, policy=["answer", "raise"])
def test_captured_content_is_on_the_enabled_signals_alone(wiretap: Wiretap, mode: str, what: str, policy: str) -> None:
    error = run_captured(wiretap, mode, what, policy, "")
    check(wiretap)
    if error is not None and not isinstance(error, PASSES):
        assert isinstance(error, ToolExecutionError | ToolNotFoundError)
        assert not holds_marker("".join(traceback.format_exception(error)).encode())


@sweep(
    capture=CARRIERS,
    mode=["call", "astream"],
    raises_in=["advise", "advise_tool", "after", "finalize", "denies", "answers", "changes"],
)
def test_captured_text_of_advisors_is_on_the_enabled_signals_alone(wiretap: Wiretap, mode: str, raises_in: str) -> None:
    run_captured(wiretap, mode, "result", "answer", raises_in)
    check(wiretap)
