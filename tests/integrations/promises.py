"""What a run has on each framework: `yes`, `no`, or in which way. Tests prove each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

LANGCHAIN: Final[Mapping[str, str]] = {
    "iteration spans": "yes",
    "model calls": "yes",
    "tokens": "yes",
    "refused calls": "yes",
    "unknown tool": "yes",
    "intent before action": "yes",
    "policy can deny": "yes",
    "approval can wait": "yes",
    "limits": "yes",
    "sub-agents": "yes",
    "streaming": "yes",
}
LANGCHAIN_DIFFERENCES: Final[Mapping[str, str]] = {
    "spans gen_ai.tool.definitions": "LangChain makes the schemas of tools",
    "log-based events gen_ai.tool.definitions": "LangChain makes the schemas of tools",
    "spans traced_tools.agent.tools.digest": "the digest of these schemas",
    "records definition_digest": "the digest of these schemas",
    "log-based events exception.stacktrace": "LangChain calls the tool",
}
"""The fields in which a run of the small agent on LangChain differs from one in our loop, and why."""
