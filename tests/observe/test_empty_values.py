"""Empty values are omitted from spans, metrics, logs and events; 0 and False are not empty."""

from __future__ import annotations

from typing import Any

import pytest

from tests.captured import Telemetry
from tests.modes import MODES, run
from tests.observe.embedders import Embedder
from tests.observe.runs import USAGE, adds
from tests.sample_tools import add
from traced_tools import AssistantMessage, ChatClient, ChatOptions, ObserverAdvisor, ToolResult
from traced_tools.events import OtlpEventExporter
from traced_tools.loop.advisor import Advisor
from traced_tools.models import ChatResponse
from traced_tools.observe import names
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolInvocation
from traced_tools.tools.invocation import CallNext


class Nameless(ScriptedChatModel):
    """A model with empty attributes."""

    provider, server_address = "", ""


class Terse(Advisor):
    """Refuses without a word for why."""

    name, order = "terse", 350

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        return call.denied("no", code="")


def answers(content: Any) -> ChatResponse:
    """Return an answer of a server that fills its fields with nothing."""
    return ChatResponse(AssistantMessage(content), usage=USAGE, finish_reason="stop", id="", model="")


@pytest.mark.parametrize("mode", MODES)
def test_empty_values_of_a_model_are_in_no_signal(mode: str) -> None:
    telemetry = Telemetry()
    exporter = OtlpEventExporter(telemetry.logger_provider)
    client = ChatClient(
        Nameless([answers([adds(1, 2)]), answers("three")], model=""),
        tools=[add],
        advisors=[Terse(), ObserverAdvisor([exporter])],
        options=ChatOptions(stop=(), temperature=0.0, seed=0),
        telemetry=telemetry.options,
    )
    run(mode, client.prompt("1+2?", conversation_id=""))
    assert empty_in(telemetry) == []
    chat = telemetry.named("chat")[0].attributes or {}
    assert {name: chat[name] for name in (names.REQUEST_TEMPERATURE, names.REQUEST_SEED)} == {
        names.REQUEST_TEMPERATURE: 0.0,
        names.REQUEST_SEED: 0,
    }
    assert names.REQUEST_STOP_SEQUENCES not in chat
    assert names.RESPONSE_ID not in chat and names.RESPONSE_MODEL not in chat


def test_an_embedding_outside_a_run_has_no_agent_attribute(telemetry: Telemetry) -> None:
    Embedder().embed(["one"], telemetry=telemetry.options)
    assert empty_in(telemetry) == []
    assert telemetry.metric(names.EMBEDDINGS_DURATION.name)


def empty_in(telemetry: Telemetry) -> list[tuple[str, str]]:
    """Return where something is empty: in what, and which attribute."""
    carriers = [
        *((span.name, span.attributes or {}) for span in telemetry.spans),
        *((point.name, point.attributes) for point in telemetry.metrics),
        *((event.name, event.attributes) for event in telemetry.events),
    ]
    return [(name, key) for name, attributes in carriers for key, value in attributes.items() if value in ("", ())]
