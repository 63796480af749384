"""The audit advisor puts each compaction of a conversation on record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.audit.draft_trails import KeptTrail, auditing, client_of
from tests.audit.trails import KEY, of_kind
from tests.captured import Telemetry, hex_ids
from tests.markers import MARKER, everything
from tests.modes import MODES, run
from tests.observe.memories import COMPACTED, Remembering, summarize
from tests.observe.runs import adds
from tests.sample_tools import add
from traced_tools import (
    Advisor,
    AssistantMessage,
    AuditAdvisor,
    AuditTrail,
    BaseAdvisor,
    ChatClient,
    ChatClientRequest,
    ToolResult,
    UserMessage,
)
from traced_tools.audit.reading.reader import AuditReader
from traced_tools.audit.verifying.walk import verify
from traced_tools.memory.telemetry import observe_compaction
from traced_tools.models import ChatResponse
from traced_tools.run.context import _CURRENT
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolCallingManager, ToolInvocation
from traced_tools.tools.invocation import CallNext

INSIDE, OUTSIDE = 350, 200
FIELDS = {
    "entry_id": "e-1",
    "trigger": "tokens",
    "strategy": "tool_results,summary",
    "covered": 12,
    "through": 14,
    "branch": "research",
    "tokens_before": 900,
    "tokens_after": 300,
    "tokens_estimated": True,
}


@pytest.fixture
def trail() -> KeptTrail:
    return KeptTrail()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("order", [INSIDE, OUTSIDE])
def test_a_compaction_is_on_record_without_any_call(trail: KeptTrail, mode: str, order: int) -> None:
    telemetry, advisor = Telemetry(), auditing(trail)
    client = ChatClient(
        ScriptedChatModel(["x"]), name="travel", advisors=[Remembering(order), advisor], telemetry=telemetry.options
    )
    prompt = client.prompt("?", conversation_id="c-1", attributes={"tenant": "acme"})
    response = run(mode, prompt)
    (draft,) = trail.drafts
    assert (draft.kind, draft.fields, draft.contents) == ("compaction", FIELDS, {})
    subject = draft.subject
    assert subject is not None
    assert (subject.agent, subject.run_id, subject.conversation_id) == ("travel", response.run_id, "c-1")
    assert (subject.call_id, subject.tool, subject.batch_index) == (None, None, None)
    assert subject.iteration == (1 if order == INSIDE else 0)
    assert dict(subject.attributes or {}) == {"tenant": "acme"}
    made = telemetry.named("compact_memory")[0]
    assert (subject.trace_id, subject.span_id) == hex_ids(made)
    assert trail.waits == 0
    assert not advisor._runs
    assert MARKER not in everything(draft)


def test_each_compaction_of_a_run_is_on_record_among_its_calls(trail: KeptTrail) -> None:
    client_of(trail, [adds(1, 1), adds(2, 2), "x"], Remembering(INSIDE)).prompt("?").call()
    assert [draft.kind for draft in trail.drafts] == [
        *("compaction", "intent", "decision", "outcome"),
        *("compaction", "intent", "decision", "outcome"),
        "compaction",
    ]


class Uncounted(BaseAdvisor):
    """Compacts for the main agent, without any counts of tokens."""

    name, order = "uncounted", INSIDE

    def before(self, request: ChatClientRequest) -> ChatClientRequest:
        summarize(request, branch="", tokens_before=None, tokens_after=None, estimated=False)
        return request


def test_what_is_not_known_of_a_compaction_is_absent(trail: KeptTrail) -> None:
    client_of(trail, ["x"], Uncounted()).prompt("?").call()
    known = {name: FIELDS[name] for name in ("entry_id", "trigger", "strategy", "covered", "through")}
    assert trail.one("compaction").fields == known


def test_an_advisor_that_is_in_a_chain_twice_records_a_compaction_once(trail: KeptTrail) -> None:
    advisor = auditing(trail)
    ChatClient(ScriptedChatModel(["x"]), advisors=[Remembering(INSIDE), advisor, advisor]).prompt("?").call()
    assert len(trail.of("compaction")) == 1


class Compacting(Advisor):
    """Compacts around each tool call."""

    name, order = "compacting", 500

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        current = _CURRENT.get()
        assert current is not None
        with observe_compaction(current, "tokens", call.iteration) as observed:
            observed.compacted(**COMPACTED)
        return await call_next(call)


def test_a_compaction_among_calls_by_hand_is_on_record(trail: KeptTrail) -> None:
    advisor = auditing(trail)
    answer = ChatResponse(AssistantMessage([adds(1, 1)]))
    advisors: list[Any] = [advisor, Compacting()]
    ToolCallingManager().execute_tool_calls([UserMessage("?")], answer, tools=[add], advisors=advisors)
    assert [draft.kind for draft in trail.drafts] == ["intent", "compaction", "decision", "outcome"]
    assert trail.one("compaction").fields == FIELDS
    assert not advisor._runs


@pytest.mark.parametrize("mode", MODES)
def test_a_compaction_is_stored_verified_and_read(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "audit.db"
    with AuditTrail(path, key=KEY, content="full") as trail:
        client = ChatClient(
            ScriptedChatModel([adds(1, 1), "x"]), tools=[add], advisors=[Remembering(OUTSIDE), AuditAdvisor(trail)]
        )
        response = run(mode, client.prompt("?", conversation_id="c-1"))
    assert verify(path).ok
    (body,) = of_kind(path, "compaction")
    assert {name: body[name] for name in FIELDS} == FIELDS
    assert (body["schema_version"], body["run_id"], body["conversation_id"]) == (1, response.run_id, "c-1")
    found = AuditReader(path).run(response.run_id)
    assert [record.kind for record in found.compactions] == ["compaction"]
    assert [call.state for call in found.calls] == ["ok"]
