"""Values that could make a whole export fail: numbers out of range, and names that cannot be encoded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry._logs import get_logger_provider
from opentelemetry.metrics import get_meter_provider
from opentelemetry.sdk.metrics import MeterProvider

from tests.captured import Telemetry, total
from tests.modes import MODES, run
from tests.observe.exported import exported_by
from traced_tools import (
    Advisor,
    AssistantMessage,
    ChatClient,
    ChatOptions,
    ContentCapture,
    TelemetryOptions,
    ToolCall,
    Usage,
)
from traced_tools.core import GenaiPrices
from traced_tools.core.enums import CONVENTIONS
from traced_tools.errors import AdvisorChainError
from traced_tools.models import ChatResponse
from traced_tools.observe import names
from traced_tools.observe.run_telemetry import RunTelemetry
from traced_tools.observe.settings import GENAI_CONVENTIONS
from traced_tools.testing import ScriptedChatModel

ODD = "half \ud800 a pair"


class Odd(ScriptedChatModel):
    model = ODD


class OddAdvisor(Advisor):
    name, order = ODD, 400


@pytest.mark.parametrize("mode", MODES)
def test_names_with_lone_surrogates_are_sent_and_scraped(mode: str) -> None:
    telemetry = Telemetry(cumulative=True)
    client = ChatClient(Odd(["x"]), name=ODD, telemetry=telemetry.options)
    run(mode, client.prompt("?", conversation_id="c"))
    assert all(dict(exported_by(telemetry)).values())
    assert "half ? a pair" in {point.attributes.get(names.AGENT_NAME) for point in telemetry.metrics}


def test_an_advisor_name_with_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(AdvisorChainError, match="UTF-8"):
        ChatClient(ScriptedChatModel([]), advisors=[OddAdvisor()])


@pytest.fixture(params=CONVENTIONS)
def conventions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv(GENAI_CONVENTIONS, request.param)
    yield request.param


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("tokens", [2**64, 2**53, -1])
@pytest.mark.usefixtures("conventions")
def test_an_invalid_token_count_is_dropped_and_counted(
    mode: str, tokens: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traced_tools.observe.failures._reported", set())
    telemetry = Telemetry(prices=GenaiPrices(), cumulative=True)
    odd = ChatResponse(AssistantMessage("x"), usage=Usage(input_tokens=tokens, output_tokens=4))
    run(mode, ChatClient(ScriptedChatModel([odd]), telemetry=telemetry.options).prompt("?"))
    attributes = telemetry.one("chat scripted").attributes or {}
    assert names.USAGE_INPUT_TOKENS not in attributes
    assert attributes[names.USAGE_OUTPUT_TOKENS] == 4
    assert [total(point) for point in telemetry.metric(names.TELEMETRY_FAILURES.name)] == [1]
    assert "tokens nobody can have counted" in caplog.text
    assert all(dict(exported_by(telemetry)).values())


def test_a_parameter_beyond_64_bits_is_omitted() -> None:
    telemetry = Telemetry()
    client = ChatClient(ScriptedChatModel(["x"]), telemetry=telemetry.options)
    client.prompt("?", options=ChatOptions(seed=2**64, max_tokens=5)).call()
    attributes = telemetry.one("chat scripted").attributes or {}
    assert names.REQUEST_SEED not in attributes
    assert attributes[names.REQUEST_MAX_TOKENS] == 5


def test_the_proxy_providers_of_the_api_select_the_global_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a module that names them at import time, before an application sets OpenTelemetry up."""
    stand_ins = TelemetryOptions(trace.ProxyTracerProvider(), get_meter_provider(), get_logger_provider())
    telemetry = Telemetry()
    assert not isinstance(stand_ins.meter_provider, MeterProvider)
    monkeypatch.setattr(
        "traced_tools.observe.run_telemetry.trace.get_tracer_provider", lambda: telemetry.tracer_provider
    )
    monkeypatch.setattr(
        "traced_tools.observe.run_telemetry.metrics.get_meter_provider", lambda: telemetry.meter_provider
    )
    monkeypatch.setattr(
        "traced_tools.observe.run_telemetry._logs.get_logger_provider", lambda: telemetry.logger_provider
    )
    ChatClient(ScriptedChatModel(["x"]), telemetry=stand_ins).prompt("?").call()
    assert telemetry.one("invoke_agent assistant")
    assert telemetry.metric(names.INVOKE_AGENT_DURATION.name)
    assert telemetry.events


def test_the_age_of_a_running_tool_has_its_name_as_a_label(monkeypatch: pytest.MonkeyPatch) -> None:
    telemetry = Telemetry()
    ages: list[float] = []

    def slow() -> str:
        """Look at the clock an hour later."""
        import time

        later = time.monotonic() + 3600
        with monkeypatch.context() as patched:
            patched.setattr("traced_tools.observe.instruments.time.monotonic", lambda: later)
            (point,) = telemetry.metric(names.TOOL_OLDEST_ACTIVE.name)
        assert dict(point.attributes) == {names.TOOL_NAME: "slow", names.AGENT_NAME: "assistant"}
        ages.append(total(point))
        return "x"

    ChatClient(ScriptedChatModel([ToolCall("slow"), "x"]), tools=[slow], telemetry=telemetry.options).prompt("?").call()
    assert ages[0] > 3599
    assert [total(point) for point in telemetry.metric(names.TOOL_OLDEST_ACTIVE.name)] == [0]


def test_an_unknown_finish_reason_is_replaced() -> None:
    telemetry = Telemetry()
    odd = ChatResponse(AssistantMessage("x"), finish_reason="stopped because of the weather")
    ChatClient(ScriptedChatModel([odd]), telemetry=telemetry.options).prompt("?").call()
    for span in ("chat scripted", "invoke_agent assistant"):
        assert (telemetry.one(span).attributes or {})[names.RESPONSE_FINISH_REASONS] == (names.OTHER,)


def test_an_exception_class_without_a_readable_name_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hiding(type):
        @property
        def __module__(cls) -> str:  # type: ignore[override]
            raise LookupError("no name")

    telemetry = Telemetry()
    error = Hiding("Hidden", (Exception,), {})
    with pytest.raises(error):
        ChatClient(ScriptedChatModel([error()]), telemetry=telemetry.options).prompt("?").call()
    assert (telemetry.one("chat scripted").attributes or {})[names.ERROR_TYPE] == names.OTHER


def test_without_an_sdk_no_telemetry_is_made_and_eight_kibibytes_are_the_limit() -> None:
    assert not RunTelemetry(TelemetryOptions(), "assistant").enabled
    assert ContentCapture("SPAN_ONLY").max_bytes == 8192
