"""What a run has on each framework, and the fields in which it differs from a run of our own loop. Tests prove each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PROMISES: Final = (
    "iteration spans",
    "model calls",
    "tokens",
    "refused calls",
    "unknown tool",
    "intent before action",
    "policy can deny",
    "approval can wait",
    "limits",
    "sub-agents",
    "streaming",
)
ALL: Final[Mapping[str, str]] = dict.fromkeys(PROMISES, "yes")
HAD: Final[Mapping[str, Mapping[str, str]]] = {
    "LangChain": ALL,
    "strands": {
        **ALL,
        "model calls": "without the model that answers and the id of its answer",
    },
    "pydantic-ai": ALL,
    "OpenAI Agents SDK": {
        **ALL,
        "unknown tool": "yes; it fails the run, as in the SDK",
        "policy can deny": "yes; a denied handoff fails the run",
        "approval can wait": "inline, and for a tool with `needs_approval`",
    },
    "Microsoft Agent Framework": {
        **ALL,
        "unknown tool": "yes; the model reads the framework's text",
        "streaming": "on asyncio, which is all that it has",
    },
}
"""By framework and promise: `yes`, `no`, or what is had. The table in docs/any-loop.md is made of it."""
DIFFERENCES: Final[Mapping[str, Mapping[str, str]]] = {
    "LangChain": {
        "spans gen_ai.tool.definitions": "LangChain makes the schemas of tools",
        "log-based events gen_ai.tool.definitions": "LangChain makes the schemas of tools",
        "spans traced_tools.agent.tools.digest": "the digest of these schemas",
        "records definition_digest": "the digest of these schemas",
        "log-based events exception.stacktrace": "LangChain calls the tool",
    },
    "strands": {
        "spans gen_ai.tool.definitions": "strands makes the schemas of tools",
        "log-based events gen_ai.tool.definitions": "strands makes the schemas of tools",
        "spans traced_tools.agent.tools.digest": "the digest of these schemas",
        "records definition_digest": "the digest of these schemas",
        "log-based events exception.stacktrace": "strands calls the tool",
        "spans gen_ai.input.messages": "strands writes what the model reads of a failed tool",
        "log-based events gen_ai.input.messages": "strands writes what the model reads of a failed tool",
        "spans gen_ai.response.id": "strands does not pass it on",
        "log-based events gen_ai.response.id": "strands does not pass it on",
        "records response_id": "strands does not pass it on",
        "spans gen_ai.response.model": "strands does not pass it on",
        "log-based events gen_ai.response.model": "strands does not pass it on",
        "events model": "strands does not pass on which model has answered",
        "metrics gen_ai.client.inference.duration": "the label of the model that has answered",
        "metrics gen_ai.client.inference.operation.input_tokens": "the label of the model that has answered",
        "metrics gen_ai.client.inference.operation.output_tokens": "the label of the model that has answered",
        "metrics gen_ai.client.inference.usage.input_tokens": "the label of the model that has answered",
        "metrics gen_ai.client.inference.usage.output_tokens": "the label of the model that has answered",
    },
    "pydantic-ai": {
        "events conversation_id": "pydantic-ai identifies each conversation",
        "spans gen_ai.conversation.id": "pydantic-ai identifies each conversation",
        "log-based events gen_ai.conversation.id": "pydantic-ai identifies each conversation",
        "log-based events exception.stacktrace": "pydantic-ai calls the tool",
    },
    "OpenAI Agents SDK": {
        "log-based events exception.stacktrace": "the SDK calls the tool",
        "spans gen_ai.tool.definitions": "the SDK makes the schemas of tools",
        "log-based events gen_ai.tool.definitions": "the SDK makes the schemas of tools",
        "spans traced_tools.agent.tools.digest": "the digest of these schemas",
        "records definition_digest": "the digest of these schemas",
        "spans gen_ai.input.messages": "the model reads the SDK's text about a tool that failed",
        "log-based events gen_ai.input.messages": "the model reads the SDK's text about a tool that failed",
    },
    "Microsoft Agent Framework": {
        "log-based events exception.stacktrace": "the frames are those of the framework",
        "spans gen_ai.tool.definitions": "the framework derives other schemas from the same functions",
        "spans traced_tools.agent.tools.digest": "the framework derives other schemas from the same functions",
        "log-based events gen_ai.tool.definitions": "the framework derives other schemas from the same functions",
        "records definition_digest": "the framework derives other schemas from the same functions",
        "spans gen_ai.input.messages": "the model reads the framework's text about a tool that failed or is unknown",
        "log-based events gen_ai.input.messages": "the model reads the framework's text about such a tool",
    },
}
"""By framework and field: why the run of the small agent differs there."""
