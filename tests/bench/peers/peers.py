"""The peers: where their workers and environments are, and what the workers find in the environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.peers.workloads import LOOP, Workload


@dataclass(frozen=True, eq=False)
class Peer:
    """A peer of the benchmark.

    Args:
        name: what identifies it, and the folder that has its workers and its requirements if nothing else is given.
        title: what the table calls it.
        worker: the folder that has its workers.
        environment: the folder whose requirements its environment is made from.
        variables: environment variables of its worker.
    """

    name: str
    title: str
    worker: str = ""
    environment: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)

    def module(self, workload: Workload) -> str:
        """Return the module that its worker for a workload runs."""
        return f"tests.bench.peers.{self._folder}.{workload.name}"

    def has(self, workload: Workload) -> bool:
        """Return whether it has a worker for a workload. Log events are emitted in the loop alone."""
        if LOG_EVENTS in self.variables and workload is not LOOP:
            return False
        return (Path(__file__).parent / self._folder / f"{workload.name}.py").is_file()

    @property
    def _folder(self) -> str:
        return self.worker or self.name


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
    Peer("httpx", "httpx and httpx-sse alone", environment=REFERENCE),
    Peer("openai_sdk", "the openai SDK alone", environment="openai_agents"),
    Peer("mcp_sdk", "the MCP SDK alone", environment=REFERENCE),
    Peer("fastmcp", "FastMCP"),
    Peer("cedar", "Cedar"),
    Peer("casbin", "casbin"),
    Peer("dbos", "bare DBOS"),
)
