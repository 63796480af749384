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
    from traced_tools.advisors.audit import AuditAdvisor as AuditAdvisor
    from traced_tools.advisors.base import MEMORY_ORDER as MEMORY_ORDER
    from traced_tools.advisors.base import TOOL_LOOP_ORDER as TOOL_LOOP_ORDER
    from traced_tools.advisors.base import Advisor as Advisor
    from traced_tools.advisors.base import BaseAdvisor as BaseAdvisor
    from traced_tools.advisors.base import ToolLoopAdvisor as ToolLoopAdvisor
    from traced_tools.advisors.base import TranscriptAdvisor as TranscriptAdvisor
    from traced_tools.advisors.chain import AdvisorChain as AdvisorChain
    from traced_tools.advisors.exchange import ChatClientRequest as ChatClientRequest
    from traced_tools.advisors.exchange import ChatClientResponse as ChatClientResponse
    from traced_tools.advisors.observer import ObserverAdvisor as ObserverAdvisor
    from traced_tools.advisors.tool_calling import ToolCallingAdvisor as ToolCallingAdvisor
    from traced_tools.audit.trail import AuditTrail as AuditTrail
    from traced_tools.client import ChatClient as ChatClient
    from traced_tools.client import ChatClientRequestSpec as ChatClientRequestSpec
    from traced_tools.errors import AdvisorChainError as AdvisorChainError
    from traced_tools.errors import AuditError as AuditError
    from traced_tools.errors import AuditUnavailable as AuditUnavailable
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
    from traced_tools.tools.run import NestedUsage as NestedUsage
    from traced_tools.tools.selection import ToolCallbackProvider as ToolCallbackProvider
    from traced_tools.tools.selection import ToolCallbackResolver as ToolCallbackResolver
    from traced_tools.tools.selection import tool_callbacks as tool_callbacks
    from traced_tools.tools.signature import ToolParam as ToolParam

_EXPORTS = {
    "Advisor": "traced_tools.advisors.base",
    "AdvisorChain": "traced_tools.advisors.chain",
    "AdvisorChainError": "traced_tools.errors",
    "AssistantMessage": "traced_tools.messages",
    "AsyncChatStream": "traced_tools.running",
    "AuditAdvisor": "traced_tools.advisors.audit",
    "AuditError": "traced_tools.errors",
    "AuditTrail": "traced_tools.audit.trail",
    "AuditUnavailable": "traced_tools.errors",
    "AuthenticationError": "traced_tools.errors",
    "BaseAdvisor": "traced_tools.advisors.base",
    "CallModel": "traced_tools.models.step",
    "ChatClient": "traced_tools.client",
    "ChatClientRequest": "traced_tools.advisors.exchange",
    "ChatClientRequestSpec": "traced_tools.client",
    "ChatClientResponse": "traced_tools.advisors.exchange",
    "ChatOptions": "traced_tools.options",
    "ChatRun": "traced_tools.running",
    "ChatStream": "traced_tools.running",
    "ConfigurationError": "traced_tools.errors",
    "ContentCapture": "traced_tools.telemetry.content",
    "DelegatingToolCallbackResolver": "traced_tools.tools.resolver",
    "EntryPointToolCallbackResolver": "traced_tools.tools.resolver",
    "ExecuteTools": "traced_tools.tools.manager",
    "FunctionToolCallback": "traced_tools.tools.callback",
    "GenaiPrices": "traced_tools.telemetry.prices",
    "ImagePart": "traced_tools.messages",
    "InvalidArguments": "traced_tools.errors",
    "InvalidRequest": "traced_tools.errors",
    "InvalidResponse": "traced_tools.errors",
    "LoopLimitExceeded": "traced_tools.errors",
    "LoopLimits": "traced_tools.tools.limits",
    "MEMORY_ORDER": "traced_tools.advisors.base",
    "Message": "traced_tools.messages",
    "ModelError": "traced_tools.errors",
    "ModelTimeout": "traced_tools.errors",
    "NeedsEventLoop": "traced_tools.errors",
    "NestedUsage": "traced_tools.tools.run",
    "ObserverAdvisor": "traced_tools.advisors.observer",
    "PriceTable": "traced_tools.telemetry.prices",
    "ProviderPart": "traced_tools.messages",
    "RateLimited": "traced_tools.errors",
    "ReasoningPart": "traced_tools.messages",
    "StaticToolCallbackResolver": "traced_tools.tools.resolver",
    "Step": "traced_tools._flow",
    "SystemMessage": "traced_tools.messages",
    "TOOL_LOOP_ORDER": "traced_tools.advisors.base",
    "TelemetryOptions": "traced_tools.telemetry.run",
    "TextPart": "traced_tools.messages",
    "ToolCall": "traced_tools.messages",
    "ToolCallback": "traced_tools.tools.callback",
    "ToolCallbackProvider": "traced_tools.tools.selection",
    "ToolCallbackResolver": "traced_tools.tools.selection",
    "ToolCallingAdvisor": "traced_tools.advisors.tool_calling",
    "ToolCallingManager": "traced_tools.tools.manager",
    "ToolContent": "traced_tools.tools.conversion",
    "ToolContext": "traced_tools.tools.context",
    "ToolDefinition": "traced_tools.tools.definition",
    "ToolDefinitionError": "traced_tools.errors",
    "ToolErrors": "traced_tools.tools.errors",
    "ToolExecutionError": "traced_tools.errors",
    "ToolExecutionResult": "traced_tools.tools.result",
    "ToolInvocation": "traced_tools.tools.execution",
    "ToolLoopAdvisor": "traced_tools.advisors.base",
    "ToolMessage": "traced_tools.messages",
    "ToolMetadata": "traced_tools.tools.definition",
    "ToolNotFoundError": "traced_tools.errors",
    "ToolParam": "traced_tools.tools.signature",
    "ToolResult": "traced_tools.tools.result",
    "ToolResultPart": "traced_tools.messages",
    "ToolTimeout": "traced_tools.errors",
    "TracedToolsError": "traced_tools.errors",
    "TranscriptAdvisor": "traced_tools.advisors.base",
    "Usage": "traced_tools.messages",
    "UserMessage": "traced_tools.messages",
    "WorkerPool": "traced_tools._workers",
    "__version__": "traced_tools._version",
    "configure": "traced_tools.telemetry.configure",
    "dump_messages": "traced_tools.messages",
    "load_messages": "traced_tools.messages",
    "perform": "traced_tools._steps",
    "tool": "traced_tools.tools.decorator",
    "tool_callbacks": "traced_tools.tools.selection",
}

__all__ = [
    "MEMORY_ORDER",
    "TOOL_LOOP_ORDER",
    "Advisor",
    "AdvisorChain",
    "AdvisorChainError",
    "AssistantMessage",
    "AsyncChatStream",
    "AuditAdvisor",
    "AuditError",
    "AuditTrail",
    "AuditUnavailable",
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
    "NestedUsage",
    "ObserverAdvisor",
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
