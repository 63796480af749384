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
STRANDS: Final[Mapping[str, str]] = {
    "iteration spans": "yes",
    "model calls": "without the model that answers and the id of its answer, which strands does not pass on",
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
STRANDS_DIFFERENCES: Final[Mapping[str, str]] = {
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
}
"""The same for strands."""

PYDANTIC_AI: Final[Mapping[str, str]] = {
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
PYDANTIC_AI_DIFFERENCES: Final[Mapping[str, str]] = {
    "events conversation_id": "pydantic-ai identifies each conversation",
    "spans gen_ai.conversation.id": "pydantic-ai identifies each conversation",
    "log-based events gen_ai.conversation.id": "pydantic-ai identifies each conversation",
    "log-based events exception.stacktrace": "pydantic-ai calls the tool",
}
"""The fields in which a run of the small agent on pydantic-ai differs from one in our loop, and why."""

OPENAI_AGENTS: Final[Mapping[str, str]] = {
    "iteration spans": "yes",
    "model calls": "yes",
    "tokens": "yes",
    "refused calls": "yes",
    "unknown tool": "yes",
    "intent before action": "yes",
    "policy can deny": "yes; a denied handoff fails the run",
    "approval can wait": "inline, and for a tool with `needs_approval`",
    "limits": "yes",
    "sub-agents": "yes",
    "streaming": "yes",
}
OPENAI_AGENTS_DIFFERENCES: Final[Mapping[str, str]] = {
    "log-based events exception.stacktrace": "the SDK calls the tool",
    "spans gen_ai.tool.definitions": "the SDK makes the schemas of tools",
    "log-based events gen_ai.tool.definitions": "the SDK makes the schemas of tools",
    "spans traced_tools.agent.tools.digest": "the digest of these schemas",
    "records definition_digest": "the digest of these schemas",
    "spans gen_ai.input.messages": "the model reads the SDK's text about a tool that failed",
    "log-based events gen_ai.input.messages": "the model reads the SDK's text about a tool that failed",
}
"""The fields in which a run of the small agent on the OpenAI Agents SDK differs from one in our loop, and why."""

PROMISES: Final[dict[str, dict[str, str]]] = {
    "pydantic-ai": {
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
    },
    "OpenAI Agents SDK": {
        "iteration spans": "yes",
        "model calls": "yes",
        "tokens": "yes",
        "refused calls": "yes",
        "unknown tool": "yes",
        "intent before action": "yes",
        "policy can deny": "tools yes; a denied handoff fails the run",
        "approval can wait": "inline, and where a tool has `needs_approval`",
        "limits": "yes",
        "sub-agents": "yes",
        "streaming": "yes",
    },
    "Microsoft Agent Framework": {
        "iteration spans": "yes",
        "model calls": "yes",
        "tokens": "yes",
        "refused calls": "yes",
        "unknown tool": "recorded as refused; the model reads the framework's text",
        "intent before action": "yes",
        "policy can deny": "yes",
        "approval can wait": "yes",
        "limits": "yes",
        "sub-agents": "yes",
        "streaming": "on asyncio, which is all that the framework has",
    },
}
"""By framework and promise: `yes`, `no`, or what is had."""

DIFFERENCES: Final[dict[str, dict[str, str]]] = {
    "pydantic-ai": {
        "events conversation_id": "pydantic-ai identifies each conversation",
        "spans gen_ai.conversation.id": "pydantic-ai identifies each conversation",
        "log-based events gen_ai.conversation.id": "pydantic-ai identifies each conversation",
        "events input_messages": "the event of the beginning has no input, which is known at the first model call",
        "log-based events exception.stacktrace": "the frames are those of the framework",
    },
    "OpenAI Agents SDK": {
        "events input_messages": "the event of the beginning has no input, which is known at the first model call",
        "log-based events exception.stacktrace": "the frames are those of the framework",
        "spans gen_ai.tool.definitions": "the SDK derives other schemas from the same functions",
        "spans traced_tools.agent.tools.digest": "the SDK derives other schemas from the same functions",
        "log-based events gen_ai.tool.definitions": "the SDK derives other schemas from the same functions",
        "records definition_digest": "the SDK derives other schemas from the same functions",
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
"""By framework and field: why the run of the small agent differs there from that of our own loop."""
