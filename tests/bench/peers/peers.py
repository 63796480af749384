"""The peers: where their environments are made from, and what their workers find in the environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, eq=False)
class Peer:
    """A peer of the benchmark.

    Args:
        name: what identifies it, and the folder that has its worker and its requirements if nothing else is given.
        title: what the table calls it.
        worker: the folder that has its worker.
        environment: the folder whose requirements its environment is made from.
        variables: environment variables of its worker.
    """

    name: str
    title: str
    worker: str = ""
    environment: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def module(self) -> str:
        """The module that its worker runs."""
        return f"tests.bench.peers.{self.worker or self.name}.worker"


LOG_EVENTS = "BENCH_LOG_EVENTS"
"""The variable that sets a logger provider in a worker. Only traced_tools has log events."""
REFERENCE = "traced_tools"
"""The peer that the others are compared with."""

WITH_EVENTS = {LOG_EVENTS: "true"}

PEERS = (
    Peer(REFERENCE, "traced_tools"),
    Peer("floor", "by hand, bare OpenTelemetry SDK", environment=REFERENCE),
    Peer(f"{REFERENCE}_events", "traced_tools, with log events", REFERENCE, REFERENCE, WITH_EVENTS),
    Peer("floor_events", "by hand, with log events", "floor", REFERENCE, WITH_EVENTS),
    Peer(
        "agent_framework",
        "agent-framework",
        variables={"AGENT_FRAMEWORK_USER_AGENT_DISABLED": "true", "AGENT_FRAMEWORK_FEATURE_MASK_DISABLED": "true"},
    ),
    Peer(
        "strands_agents",
        "strands-agents",
        variables={
            "AWS_EC2_METADATA_DISABLED": "true",
            "OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_unredacted_attributes=",  # redacts all content
        },
    ),
    Peer("pydantic_ai", "pydantic-ai"),
    Peer("openai_agents", "openai-agents, OpenInference"),
    Peer(
        "langchain",
        "langchain, OpenLLMetry",
        variables={
            "LANGSMITH_TRACING": "false",
            "TRACELOOP_TELEMETRY": "false",
            "TRACELOOP_TRACE_CONTENT": "false",
        },
    ),
)
