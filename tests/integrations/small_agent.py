"""One small agent that our loop, a loop by hand and each framework runs, and all that can be seen of its run.

Its model calls a tool that works and one that fails, then one that the policy denies and one that does not exist, and
then one more than the limit allows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from tests.audit.draft_trails import KeptTrail
from tests.captured import Telemetry
from tests.events.watching import Watching
from tests.observe.comparable import emitted_events, lineage, point_shape, steady
from traced_tools import AssistantMessage, ChatClient, LoopLimits, SystemMessage, ToolCall, UserMessage
from traced_tools.audit.advisor import AuditAdvisor
from traced_tools.core.messages import Usage
from traced_tools.models import ChatResponse
from traced_tools.observe import ToolEvent, names
from traced_tools.policy import Policy, PolicyAdvisor, Rule
from traced_tools.testing import ScriptedChatModel

AGENT: Final = "desk"
MODEL, PROVIDER = "scripted", "scripted"
INSTRUCTIONS: Final = "Be brief."
QUESTION: Final = "Add, look up and pay."
USAGE: Final = Usage(input_tokens=10, output_tokens=5)
LIMITS: Final = LoopLimits(max_tool_calls=4)
TURNS: Final[tuple[Any, ...]] = (
    [ToolCall("add", {"a": 20, "b": 22}, id="c1"), ToolCall("look_up", {"name": "Ana"}, id="c2")],
    [ToolCall("pay", {"amount": 90}, id="c3"), ToolCall("invented", {}, id="c4")],
    [ToolCall("add", {"a": 1, "b": 1}, id="c5")],
    "Done.",
)
IDS_AND_TIMES: Final = {
    *("id", "time", "sequence", "run_id", "trace_id", "span_id", "duration", "queue_time", "response_id"),
}
MESSAGES: Final = (SystemMessage(INSTRUCTIONS), UserMessage(QUESTION))


OUR_LOOP = "tool_calling"
"""The name of the advisor that is our loop, whose hooks a loop by hand does not have."""


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def look_up(name: str) -> str:
    """Look somebody up."""
    raise LookupError(f"nobody is called {name}")


def pay(amount: int) -> str:
    """Pay an amount."""
    raise AssertionError("the policy denies it")


TOOLS: Final = (add, look_up, pay)


def answers() -> list[ChatResponse]:
    """Return what the model answers, as the provider reports it."""
    responses = []
    for number, turn in enumerate(TURNS, 1):
        calls = [] if isinstance(turn, str) else turn
        message = AssistantMessage(turn if isinstance(turn, str) else "", tool_calls=calls)
        reason: Any = "tool_call" if calls else "stop"
        responses.append(ChatResponse(message, usage=USAGE, finish_reason=reason, id=f"scripted_{number}", model=MODEL))
    return responses


class Run:
    """What a run of the small agent is observed with, and all that can be seen of it.

    Attributes:
        telemetry: where its spans, metrics and log-based events go.
        trail: where its audit records go.
        watching: the advisor that receives its events.
    """

    def __init__(self) -> None:
        self.telemetry = Telemetry(capture="SPAN_AND_EVENT")
        self.trail = KeptTrail()
        self.watching = Watching(420)

    @property
    def policy(self) -> PolicyAdvisor:
        """The policy that denies to pay."""
        return PolicyAdvisor(Policy([Rule("no_payments", then="deny", tool="pay")], default="allow"))

    def seen(self) -> dict[str, Any]:
        """Return the spans, events, metrics and audit records, without times and ids."""
        return {
            "spans": lineage(self.telemetry),
            "log-based events": emitted_events(self.telemetry),
            "metrics": [point_shape(point) for point in steady(self.telemetry)],
            "events": {call: list(facts) for call, facts in self._events().items()},
            "records": self._records(),
        }

    def _events(self) -> Mapping[str, list[Any]]:
        """Return the events in order, those of each call apart, since calls of an answer run at once."""
        events = defaultdict(list)
        for event in self.watching.events:
            left_out = {
                "id",
                "time",
                "sequence",
                "run_id",
                "trace_id",
                "span_id",
                "duration",
                "queue_time",
                "response_id",
            }
            fields = {name: value for name, value in event.model_dump().items() if name not in left_out}
            events[event.call_id if isinstance(event, ToolEvent) else ""].append(fields)
        return events

    def _records(self) -> Mapping[str, list[Any]]:
        """Return the audit records in order, those of each call apart."""
        records = defaultdict(list)
        for draft in self.trail.drafts:
            fields = {name: value for name, value in draft.fields.items() if name != "duration"}
            contents = {name: content.text for name, content in draft.contents.items()}
            records[str(draft.subject and draft.subject.call_id)].append((draft.kind, fields, contents))
        return records


def own_run() -> Run:
    """Run the agent in our loop."""
    run = Run()
    client = ChatClient(
        ScriptedChatModel([*TURNS], model=MODEL, usage=USAGE),
        name=AGENT,
        system=INSTRUCTIONS,
        tools=TOOLS,
        advisors=[run.policy, AuditAdvisor(run.trail), run.watching],  # type: ignore[arg-type]  # it stands for a trail
        limits=LIMITS,
        telemetry=run.telemetry.options,
    )
    client.prompt(QUESTION).call()
    return run


def without_our_loop(seen: dict[str, Any]) -> dict[str, Any]:
    """Return what was seen without the spans and times of our loop's own hooks, and without the agent's version."""
    spans = []
    for path, kind, status, attributes in seen["spans"]:
        *above, last = (name for name in path if name != f"advise {OUR_LOOP} ")
        if OUR_LOOP not in last.split() and path[-1] == last:
            spans.append(
                ((*above, last), kind, status, [item for item in attributes if item[0] != names.AGENT_VERSION])
            )
    events = [
        (name, severity, where, [item for item in attributes if item[0] != names.AGENT_VERSION])
        for name, severity, where, attributes in seen["log-based events"]
    ]
    metrics = [
        ((name, tuple(label for label in labels if label[0] != names.AGENT_VERSION)), count, value)
        for (name, labels), count, value in seen["metrics"]
        if (names.ADVISOR_NAME, OUR_LOOP) not in labels
    ]
    return {**seen, "spans": spans, "log-based events": events, "metrics": sorted(metrics, key=str)}
