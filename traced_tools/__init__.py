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
    from traced_tools._workers import WorkerPool as WorkerPool
    from traced_tools.advisors.base import MEMORY_ORDER as MEMORY_ORDER
    from traced_tools.advisors.base import TOOL_LOOP_ORDER as TOOL_LOOP_ORDER
    from traced_tools.advisors.base import Advisor as Advisor
    from traced_tools.advisors.base import BaseAdvisor as BaseAdvisor
    from traced_tools.advisors.base import ToolLoopAdvisor as ToolLoopAdvisor
    from traced_tools.advisors.base import TranscriptAdvisor as TranscriptAdvisor
    from traced_tools.advisors.chain import AdvisorChain as AdvisorChain
    from traced_tools.advisors.exchange import ChatClientRequest as ChatClientRequest
    from traced_tools.advisors.exchange import ChatClientResponse as ChatClientResponse
    from traced_tools.advisors.tool_calling import ToolCallingAdvisor as ToolCallingAdvisor
    from traced_tools.client import ChatClient as ChatClient
    from traced_tools.client import ChatClientRequestSpec as ChatClientRequestSpec
    from traced_tools.errors import AdvisorChainError as AdvisorChainError
    from traced_tools.errors import AuthenticationError as AuthenticationError
    from traced_tools.errors import ConfigurationError as ConfigurationError
    from traced_tools.errors import InvalidArguments as InvalidArguments
    from traced_tools.errors import InvalidRequest as InvalidRequest
    from traced_tools.errors import InvalidResponse as InvalidResponse
    from traced_tools.errors import LoopLimitExceeded as LoopLimitExceeded
    from traced_tools.errors import ModelError as ModelError
    from traced_tools.errors import ModelTimeout as ModelTimeout
    from traced_tools.errors import NeedsEventLoop as NeedsEventLoop
    from traced_tools.errors import RateLimited as RateLimited
    from traced_tools.errors import ToolDefinitionError as ToolDefinitionError
    from traced_tools.errors import ToolExecutionError as ToolExecutionError
    from traced_tools.errors import ToolNotFoundError as ToolNotFoundError
    from traced_tools.errors import ToolTimeout as ToolTimeout
    from traced_tools.errors import TracedToolsError as TracedToolsError
    from traced_tools.messages import AssistantMessage as AssistantMessage
    from traced_tools.messages import ImagePart as ImagePart
    from traced_tools.messages import Message as Message
    from traced_tools.messages import ProviderPart as ProviderPart
    from traced_tools.messages import ReasoningPart as ReasoningPart
    from traced_tools.messages import SystemMessage as SystemMessage
    from traced_tools.messages import TextPart as TextPart
    from traced_tools.messages import ToolCall as ToolCall
    from traced_tools.messages import ToolMessage as ToolMessage
    from traced_tools.messages import ToolResultPart as ToolResultPart
    from traced_tools.messages import Usage as Usage
    from traced_tools.messages import UserMessage as UserMessage
    from traced_tools.messages import dump_messages as dump_messages
    from traced_tools.messages import load_messages as load_messages
    from traced_tools.models.step import CallModel as CallModel
    from traced_tools.options import ChatOptions as ChatOptions
    from traced_tools.running import AsyncChatStream as AsyncChatStream
    from traced_tools.running import ChatRun as ChatRun
    from traced_tools.running import ChatStream as ChatStream
    from traced_tools.telemetry.configure import configure as configure
    from traced_tools.telemetry.content import ContentCapture as ContentCapture
    from traced_tools.telemetry.prices import GenaiPrices as GenaiPrices
    from traced_tools.telemetry.prices import PriceTable as PriceTable
    from traced_tools.telemetry.run import TelemetryOptions as TelemetryOptions
    from traced_tools.tools.callback import FunctionToolCallback as FunctionToolCallback
    from traced_tools.tools.callback import ToolCallback as ToolCallback
    from traced_tools.tools.context import ToolContext as ToolContext
    from traced_tools.tools.conversion import ToolContent as ToolContent
    from traced_tools.tools.decorator import tool as tool
    from traced_tools.tools.definition import ToolDefinition as ToolDefinition
    from traced_tools.tools.definition import ToolMetadata as ToolMetadata
    from traced_tools.tools.errors import ToolErrors as ToolErrors
    from traced_tools.tools.execution import ToolInvocation as ToolInvocation
    from traced_tools.tools.limits import LoopLimits as LoopLimits
    from traced_tools.tools.manager import ExecuteTools as ExecuteTools
    from traced_tools.tools.manager import ToolCallingManager as ToolCallingManager
    from traced_tools.tools.resolver import DelegatingToolCallbackResolver as DelegatingToolCallbackResolver
    from traced_tools.tools.resolver import EntryPointToolCallbackResolver as EntryPointToolCallbackResolver
    from traced_tools.tools.resolver import StaticToolCallbackResolver as StaticToolCallbackResolver
    from traced_tools.tools.result import ToolExecutionResult as ToolExecutionResult
    from traced_tools.tools.result import ToolResult as ToolResult
    from traced_tools.tools.selection import ToolCallbackProvider as ToolCallbackProvider
    from traced_tools.tools.selection import ToolCallbackResolver as ToolCallbackResolver
    from traced_tools.tools.selection import tool_callbacks as tool_callbacks
    from traced_tools.tools.signature import ToolParam as ToolParam

_EXPORTS = {
    "ToolContent": "traced_tools.tools.conversion",
    "DelegatingToolCallbackResolver": "traced_tools.tools.resolver",
    "EntryPointToolCallbackResolver": "traced_tools.tools.resolver",
    "StaticToolCallbackResolver": "traced_tools.tools.resolver",
    "ToolCallbackResolver": "traced_tools.tools.selection",
    "ToolCallbackProvider": "traced_tools.tools.selection",
    "ToolTimeout": "traced_tools.errors",
    "WorkerPool": "traced_tools._workers",
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
    "InvalidArguments": "traced_tools.errors",
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
    "ProviderPart": "traced_tools.messages",
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
    "ContentCapture": "traced_tools.telemetry.content",
    "GenaiPrices": "traced_tools.telemetry.prices",
    "PriceTable": "traced_tools.telemetry.prices",
    "TelemetryOptions": "traced_tools.telemetry.run",
    "FunctionToolCallback": "traced_tools.tools.callback",
    "ToolCallback": "traced_tools.tools.callback",
    "ToolContext": "traced_tools.tools.context",
    "tool": "traced_tools.tools.decorator",
    "tool_callbacks": "traced_tools.tools.selection",
    "ToolDefinition": "traced_tools.tools.definition",
    "ToolMetadata": "traced_tools.tools.definition",
    "ToolErrors": "traced_tools.tools.errors",
    "ToolInvocation": "traced_tools.tools.execution",
    "LoopLimits": "traced_tools.tools.limits",
    "ExecuteTools": "traced_tools.tools.manager",
    "ToolCallingManager": "traced_tools.tools.manager",
    "ToolExecutionResult": "traced_tools.tools.result",
    "ToolResult": "traced_tools.tools.result",
    "ToolParam": "traced_tools.tools.signature",
}

__all__ = [
    "MEMORY_ORDER",
    "TOOL_LOOP_ORDER",
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
    "ContentCapture",
    "DelegatingToolCallbackResolver",
    "EntryPointToolCallbackResolver",
    "ExecuteTools",
    "FunctionToolCallback",
    "GenaiPrices",
    "ImagePart",
    "InvalidArguments",
    "InvalidRequest",
    "InvalidResponse",
    "LoopLimitExceeded",
    "LoopLimits",
    "Message",
    "ModelError",
    "ModelTimeout",
    "NeedsEventLoop",
    "PriceTable",
    "ProviderPart",
    "RateLimited",
    "ReasoningPart",
    "StaticToolCallbackResolver",
    "Step",
    "SystemMessage",
    "TelemetryOptions",
    "TextPart",
    "ToolCall",
    "ToolCallback",
    "ToolCallbackProvider",
    "ToolCallbackResolver",
    "ToolCallingAdvisor",
    "ToolCallingManager",
    "ToolContent",
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
    "ToolTimeout",
    "TracedToolsError",
    "TranscriptAdvisor",
    "Usage",
    "UserMessage",
    "WorkerPool",
    "__version__",
    "configure",
    "dump_messages",
    "load_messages",
    "perform",
    "tool",
    "tool_callbacks",
]

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
