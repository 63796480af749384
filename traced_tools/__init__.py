"""A tool-calling loop for agents in which every step is an OpenTelemetry span.

Importing this is cheap: what a name needs is imported when the name is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traced_tools._lazy import lazy_exports

if TYPE_CHECKING:
    from traced_tools._flow import Step as Step
    from traced_tools._steps import perform as perform
    from traced_tools._version import __version__ as __version__
    from traced_tools.advisors.base import MEMORY_ORDER as MEMORY_ORDER, TOOL_LOOP_ORDER as TOOL_LOOP_ORDER, Advisor as Advisor, BaseAdvisor as BaseAdvisor, ToolLoopAdvisor as ToolLoopAdvisor, TranscriptAdvisor as TranscriptAdvisor
    from traced_tools.advisors.chain import AdvisorChain as AdvisorChain
    from traced_tools.advisors.exchange import ChatClientRequest as ChatClientRequest, ChatClientResponse as ChatClientResponse
    from traced_tools.advisors.tool_calling import ToolCallingAdvisor as ToolCallingAdvisor
    from traced_tools.client import ChatClient as ChatClient, ChatClientRequestSpec as ChatClientRequestSpec
    from traced_tools.errors import AdvisorChainError as AdvisorChainError, AuthenticationError as AuthenticationError, ConfigurationError as ConfigurationError, InvalidRequest as InvalidRequest, InvalidResponse as InvalidResponse, LoopLimitExceeded as LoopLimitExceeded, ModelError as ModelError, ModelTimeout as ModelTimeout, NeedsEventLoop as NeedsEventLoop, RateLimited as RateLimited, ToolDefinitionError as ToolDefinitionError, ToolExecutionError as ToolExecutionError, ToolNotFoundError as ToolNotFoundError, TracedToolsError as TracedToolsError
    from traced_tools.messages import AssistantMessage as AssistantMessage, ImagePart as ImagePart, Message as Message, ReasoningPart as ReasoningPart, SystemMessage as SystemMessage, TextPart as TextPart, ToolCall as ToolCall, ToolMessage as ToolMessage, ToolResultPart as ToolResultPart, Usage as Usage, UserMessage as UserMessage, dump_messages as dump_messages, load_messages as load_messages
    from traced_tools.models.step import CallModel as CallModel
    from traced_tools.options import ChatOptions as ChatOptions
    from traced_tools.running import AsyncChatStream as AsyncChatStream, ChatRun as ChatRun, ChatStream as ChatStream
    from traced_tools.telemetry.configure import configure as configure
    from traced_tools.telemetry.run import TelemetryOptions as TelemetryOptions
    from traced_tools.tools.callback import FunctionToolCallback as FunctionToolCallback, ToolCallback as ToolCallback
    from traced_tools.tools.context import ToolContext as ToolContext
    from traced_tools.tools.decorator import tool as tool, tool_callbacks as tool_callbacks
    from traced_tools.tools.definition import ToolDefinition as ToolDefinition, ToolMetadata as ToolMetadata
    from traced_tools.tools.errors import ToolErrors as ToolErrors
    from traced_tools.tools.execution import ToolInvocation as ToolInvocation
    from traced_tools.tools.limits import LoopLimits as LoopLimits
    from traced_tools.tools.manager import ExecuteTools as ExecuteTools, ToolCallingManager as ToolCallingManager
    from traced_tools.tools.result import ToolExecutionResult as ToolExecutionResult, ToolResult as ToolResult
    from traced_tools.tools.schema import ToolParam as ToolParam

_EXPORTS = {
    "Step": "traced_tools._flow",
    "perform": "traced_tools._steps",
    "__version__": "traced_tools._version",
    "MEMORY_ORDER": "traced_tools.advisors.base",
    "TOOL_LOOP_ORDER": "traced_tools.advisors.base",
    "Advisor": "traced_tools.advisors.base",
    "BaseAdvisor": "traced_tools.advisors.base",
    "ToolLoopAdvisor": "traced_tools.advisors.base",
    "TranscriptAdvisor": "traced_tools.advisors.base",
    "AdvisorChain": "traced_tools.advisors.chain",
    "ChatClientRequest": "traced_tools.advisors.exchange",
    "ChatClientResponse": "traced_tools.advisors.exchange",
    "ToolCallingAdvisor": "traced_tools.advisors.tool_calling",
    "ChatClient": "traced_tools.client",
    "ChatClientRequestSpec": "traced_tools.client",
    "AdvisorChainError": "traced_tools.errors",
    "AuthenticationError": "traced_tools.errors",
    "ConfigurationError": "traced_tools.errors",
    "InvalidRequest": "traced_tools.errors",
    "InvalidResponse": "traced_tools.errors",
    "LoopLimitExceeded": "traced_tools.errors",
    "ModelError": "traced_tools.errors",
    "ModelTimeout": "traced_tools.errors",
    "NeedsEventLoop": "traced_tools.errors",
    "RateLimited": "traced_tools.errors",
    "ToolDefinitionError": "traced_tools.errors",
    "ToolExecutionError": "traced_tools.errors",
    "ToolNotFoundError": "traced_tools.errors",
    "TracedToolsError": "traced_tools.errors",
    "AssistantMessage": "traced_tools.messages",
    "ImagePart": "traced_tools.messages",
    "Message": "traced_tools.messages",
    "ReasoningPart": "traced_tools.messages",
    "SystemMessage": "traced_tools.messages",
    "TextPart": "traced_tools.messages",
    "ToolCall": "traced_tools.messages",
    "ToolMessage": "traced_tools.messages",
    "ToolResultPart": "traced_tools.messages",
    "Usage": "traced_tools.messages",
    "UserMessage": "traced_tools.messages",
    "dump_messages": "traced_tools.messages",
    "load_messages": "traced_tools.messages",
    "CallModel": "traced_tools.models.step",
    "ChatOptions": "traced_tools.options",
    "AsyncChatStream": "traced_tools.running",
    "ChatRun": "traced_tools.running",
    "ChatStream": "traced_tools.running",
    "configure": "traced_tools.telemetry.configure",
    "TelemetryOptions": "traced_tools.telemetry.run",
    "FunctionToolCallback": "traced_tools.tools.callback",
    "ToolCallback": "traced_tools.tools.callback",
    "ToolContext": "traced_tools.tools.context",
    "tool": "traced_tools.tools.decorator",
    "tool_callbacks": "traced_tools.tools.decorator",
    "ToolDefinition": "traced_tools.tools.definition",
    "ToolMetadata": "traced_tools.tools.definition",
    "ToolErrors": "traced_tools.tools.errors",
    "ToolInvocation": "traced_tools.tools.execution",
    "LoopLimits": "traced_tools.tools.limits",
    "ExecuteTools": "traced_tools.tools.manager",
    "ToolCallingManager": "traced_tools.tools.manager",
    "ToolExecutionResult": "traced_tools.tools.result",
    "ToolResult": "traced_tools.tools.result",
    "ToolParam": "traced_tools.tools.schema",
}

__all__ = [
    "Advisor",
    "AdvisorChain",
    "AdvisorChainError",
    "AssistantMessage",
    "AsyncChatStream",
    "AuthenticationError",
    "BaseAdvisor",
    "CallModel",
    "ChatClient",
    "ChatClientRequest",
    "ChatClientRequestSpec",
    "ChatClientResponse",
    "ChatOptions",
    "ChatRun",
    "ChatStream",
    "ConfigurationError",
    "ExecuteTools",
    "FunctionToolCallback",
    "ImagePart",
    "InvalidRequest",
    "InvalidResponse",
    "LoopLimitExceeded",
    "LoopLimits",
    "MEMORY_ORDER",
    "Message",
    "ModelError",
    "ModelTimeout",
    "NeedsEventLoop",
    "RateLimited",
    "ReasoningPart",
    "Step",
    "SystemMessage",
    "TOOL_LOOP_ORDER",
    "TelemetryOptions",
    "TextPart",
    "ToolCall",
    "ToolCallback",
    "ToolCallingAdvisor",
    "ToolCallingManager",
    "ToolContext",
    "ToolDefinition",
    "ToolDefinitionError",
    "ToolErrors",
    "ToolExecutionError",
    "ToolExecutionResult",
    "ToolInvocation",
    "ToolLoopAdvisor",
    "ToolMessage",
    "ToolMetadata",
    "ToolNotFoundError",
    "ToolParam",
    "ToolResult",
    "ToolResultPart",
    "TracedToolsError",
    "TranscriptAdvisor",
    "Usage",
    "UserMessage",
    "__version__",
    "configure",
    "dump_messages",
    "load_messages",
    "perform",
    "tool",
    "tool_callbacks",
]

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
