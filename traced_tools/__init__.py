"""A tool-calling loop for agents in which every step is an OpenTelemetry span.

Importing the package is cheap: each name imports its module on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traced_tools._lazy import lazy_exports

if TYPE_CHECKING:
    from traced_tools._version import __version__ as __version__
    from traced_tools.advisors.approval import ApprovalAdvisor as ApprovalAdvisor
    from traced_tools.advisors.cache_tool import CacheToolAdvisor as CacheToolAdvisor
    from traced_tools.advisors.evaluation import EvaluationAdvisor as EvaluationAdvisor
    from traced_tools.advisors.function import advisor as advisor
    from traced_tools.advisors.log import LoggingAdvisor as LoggingAdvisor
    from traced_tools.advisors.model_judge import ModelJudge as ModelJudge
    from traced_tools.advisors.retry_tool import RetryToolAdvisor as RetryToolAdvisor
    from traced_tools.advisors.safeguard import SafeguardAdvisor as SafeguardAdvisor
    from traced_tools.advisors.structured_output import StructuredOutputAdvisor as StructuredOutputAdvisor
    from traced_tools.approvals.pending_rows import WaitingApproval as WaitingApproval
    from traced_tools.approvals.pending_store import PendingStore as PendingStore
    from traced_tools.audit.advisor import AuditAdvisor as AuditAdvisor
    from traced_tools.audit.trail import AuditTrail as AuditTrail
    from traced_tools.client import ChatClient as ChatClient
    from traced_tools.core.approval import Approve as Approve
    from traced_tools.core.approval import PendingCall as PendingCall
    from traced_tools.core.approval import Reject as Reject
    from traced_tools.core.approval import Undecided as Undecided
    from traced_tools.core.evaluation import Evaluation as Evaluation
    from traced_tools.core.limits import LoopLimits as LoopLimits
    from traced_tools.core.messages import AssistantMessage as AssistantMessage
    from traced_tools.core.messages import ImagePart as ImagePart
    from traced_tools.core.messages import Message as Message
    from traced_tools.core.messages import ProviderPart as ProviderPart
    from traced_tools.core.messages import ReasoningPart as ReasoningPart
    from traced_tools.core.messages import SystemMessage as SystemMessage
    from traced_tools.core.messages import TextPart as TextPart
    from traced_tools.core.messages import ToolCall as ToolCall
    from traced_tools.core.messages import ToolMessage as ToolMessage
    from traced_tools.core.messages import ToolResultPart as ToolResultPart
    from traced_tools.core.messages import Usage as Usage
    from traced_tools.core.messages import UserMessage as UserMessage
    from traced_tools.core.messages import dump_messages as dump_messages
    from traced_tools.core.messages import load_messages as load_messages
    from traced_tools.core.options import ChatOptions as ChatOptions
    from traced_tools.core.part_check import CheckedPart as CheckedPart
    from traced_tools.core.part_check import PartCheck as PartCheck
    from traced_tools.core.policy_verdict import PolicyVerdict as PolicyVerdict
    from traced_tools.core.prices import GenaiPrices as GenaiPrices
    from traced_tools.core.prices import PriceTable as PriceTable
    from traced_tools.core.result_conversion import ToolContent as ToolContent
    from traced_tools.core.tool_context import ToolContext as ToolContext
    from traced_tools.core.tool_definition import ToolAnnotations as ToolAnnotations
    from traced_tools.core.tool_definition import ToolCallback as ToolCallback
    from traced_tools.core.tool_definition import ToolCallbackResolver as ToolCallbackResolver
    from traced_tools.core.tool_definition import ToolDefinition as ToolDefinition
    from traced_tools.core.tool_definition import ToolMetadata as ToolMetadata
    from traced_tools.core.tool_errors import ToolErrors as ToolErrors
    from traced_tools.core.tool_input import GivenInput as GivenInput
    from traced_tools.core.tool_input import InputRequest as InputRequest
    from traced_tools.core.tool_input import PendingInput as PendingInput
    from traced_tools.core.tool_input import Provide as Provide
    from traced_tools.core.tool_result import ToolExecutionResult as ToolExecutionResult
    from traced_tools.core.tool_result import ToolResult as ToolResult
    from traced_tools.core.totals import NestedUsage as NestedUsage
    from traced_tools.errors import AdvisorChainError as AdvisorChainError
    from traced_tools.errors import AlreadyDecided as AlreadyDecided
    from traced_tools.errors import AuditError as AuditError
    from traced_tools.errors import AuditUnavailable as AuditUnavailable
    from traced_tools.errors import AuthenticationError as AuthenticationError
    from traced_tools.errors import ChatMemoryError as ChatMemoryError
    from traced_tools.errors import ChatMemoryUnavailable as ChatMemoryUnavailable
    from traced_tools.errors import ConfigurationError as ConfigurationError
    from traced_tools.errors import ContextOverflow as ContextOverflow
    from traced_tools.errors import ConversationConflict as ConversationConflict
    from traced_tools.errors import ConversationDenied as ConversationDenied
    from traced_tools.errors import EvaluationError as EvaluationError
    from traced_tools.errors import InputRequired as InputRequired
    from traced_tools.errors import InvalidArguments as InvalidArguments
    from traced_tools.errors import InvalidRequest as InvalidRequest
    from traced_tools.errors import InvalidResponse as InvalidResponse
    from traced_tools.errors import LoopLimitExceeded as LoopLimitExceeded
    from traced_tools.errors import McpCallLost as McpCallLost
    from traced_tools.errors import McpError as McpError
    from traced_tools.errors import McpRequestError as McpRequestError
    from traced_tools.errors import McpToolError as McpToolError
    from traced_tools.errors import McpToolsChanged as McpToolsChanged
    from traced_tools.errors import McpUnavailable as McpUnavailable
    from traced_tools.errors import ModelError as ModelError
    from traced_tools.errors import ModelTimeout as ModelTimeout
    from traced_tools.errors import NeedsEventLoop as NeedsEventLoop
    from traced_tools.errors import NestedRunWaits as NestedRunWaits
    from traced_tools.errors import NotWaiting as NotWaiting
    from traced_tools.errors import OutputValidationError as OutputValidationError
    from traced_tools.errors import PendingStoreError as PendingStoreError
    from traced_tools.errors import PendingStoreUnavailable as PendingStoreUnavailable
    from traced_tools.errors import RateLimited as RateLimited
    from traced_tools.errors import ResumeError as ResumeError
    from traced_tools.errors import StateNotKept as StateNotKept
    from traced_tools.errors import ToolDefinitionError as ToolDefinitionError
    from traced_tools.errors import ToolExecutionError as ToolExecutionError
    from traced_tools.errors import ToolIndexError as ToolIndexError
    from traced_tools.errors import ToolNotFoundError as ToolNotFoundError
    from traced_tools.errors import ToolOutcomeUnknown as ToolOutcomeUnknown
    from traced_tools.errors import ToolTimeout as ToolTimeout
    from traced_tools.errors import TracedToolsError as TracedToolsError
    from traced_tools.errors import UnreadableConversation as UnreadableConversation
    from traced_tools.events.observer import ObserverAdvisor as ObserverAdvisor
    from traced_tools.flow.flow import Step as Step
    from traced_tools.flow.steps import perform as perform
    from traced_tools.flow.workers import WorkerPool as WorkerPool
    from traced_tools.loop.advisor import MEMORY_ORDER as MEMORY_ORDER
    from traced_tools.loop.advisor import TOOL_LOOP_ORDER as TOOL_LOOP_ORDER
    from traced_tools.loop.advisor import Advisor as Advisor
    from traced_tools.loop.advisor import BaseAdvisor as BaseAdvisor
    from traced_tools.loop.advisor import ToolLoopAdvisor as ToolLoopAdvisor
    from traced_tools.loop.advisor import TranscriptAdvisor as TranscriptAdvisor
    from traced_tools.loop.chain import AdvisorChain as AdvisorChain
    from traced_tools.loop.exchange import ChatClientRequest as ChatClientRequest
    from traced_tools.loop.exchange import ChatClientResponse as ChatClientResponse
    from traced_tools.loop.tool_calling import ToolCallingAdvisor as ToolCallingAdvisor
    from traced_tools.memory.advisor import MemoryAdvisor as MemoryAdvisor
    from traced_tools.memory.chat_memory import ChatMemory as ChatMemory
    from traced_tools.memory.compacting import CompactingChatMemory as CompactingChatMemory
    from traced_tools.memory.entries import CompactionEntry as CompactionEntry
    from traced_tools.memory.entries import MemoryEntry as MemoryEntry
    from traced_tools.memory.entries import MessageEntry as MessageEntry
    from traced_tools.memory.in_memory import InMemoryChatMemoryRepository as InMemoryChatMemoryRepository
    from traced_tools.memory.recall import recall_tool as recall_tool
    from traced_tools.memory.redis import RedisChatMemoryRepository as RedisChatMemoryRepository
    from traced_tools.memory.repository import ChatMemoryRepository as ChatMemoryRepository
    from traced_tools.memory.sql import SqlChatMemoryRepository as SqlChatMemoryRepository
    from traced_tools.memory.strategies import CompactionStrategy as CompactionStrategy
    from traced_tools.memory.strategies import CutToolResults as CutToolResults
    from traced_tools.memory.strategies import KeepTurns as KeepTurns
    from traced_tools.memory.summarize import Summarize as Summarize
    from traced_tools.memory.triggers import CompactionTrigger as CompactionTrigger
    from traced_tools.memory.triggers import Tokens as Tokens
    from traced_tools.memory.triggers import Turns as Turns
    from traced_tools.memory.triggers import WindowShare as WindowShare
    from traced_tools.memory.window import MessageWindowChatMemory as MessageWindowChatMemory
    from traced_tools.models.step import CallModel as CallModel
    from traced_tools.observe.content import ContentCapture as ContentCapture
    from traced_tools.observe.run_telemetry import TelemetryOptions as TelemetryOptions
    from traced_tools.otel.configure import configure as configure
    from traced_tools.policy.advisor import PolicyAdvisor as PolicyAdvisor
    from traced_tools.policy.policy import Policy as Policy
    from traced_tools.policy.rule import Rule as Rule
    from traced_tools.request_spec import ChatClientRequestSpec as ChatClientRequestSpec
    from traced_tools.run.log_filter import RunIdFilter as RunIdFilter
    from traced_tools.run_handles import AsyncChatStream as AsyncChatStream
    from traced_tools.run_handles import ChatRun as ChatRun
    from traced_tools.run_handles import ChatStream as ChatStream
    from traced_tools.search.advisor import ToolSearchToolCallingAdvisor as ToolSearchToolCallingAdvisor
    from traced_tools.tools.approval import ApprovalRequest as ApprovalRequest
    from traced_tools.tools.augmentation import augmented as augmented
    from traced_tools.tools.augmented_tool import AugmentedArguments as AugmentedArguments
    from traced_tools.tools.batch import ExecuteTools as ExecuteTools
    from traced_tools.tools.callback import FunctionToolCallback as FunctionToolCallback
    from traced_tools.tools.decorator import tool as tool
    from traced_tools.tools.invocation import ToolInvocation as ToolInvocation
    from traced_tools.tools.manager import ToolCallingManager as ToolCallingManager
    from traced_tools.tools.resolver import DelegatingToolCallbackResolver as DelegatingToolCallbackResolver
    from traced_tools.tools.resolver import EntryPointToolCallbackResolver as EntryPointToolCallbackResolver
    from traced_tools.tools.resolver import StaticToolCallbackResolver as StaticToolCallbackResolver
    from traced_tools.tools.schema.signature import ToolParam as ToolParam
    from traced_tools.tools.selection import ToolCallbackProvider as ToolCallbackProvider
    from traced_tools.tools.selection import tool_callbacks as tool_callbacks

_EXPORTS = {
    "MEMORY_ORDER": "traced_tools.loop.advisor",
    "TOOL_LOOP_ORDER": "traced_tools.loop.advisor",
    "Advisor": "traced_tools.loop.advisor",
    "AdvisorChain": "traced_tools.loop.chain",
    "AdvisorChainError": "traced_tools.errors",
    "AlreadyDecided": "traced_tools.errors",
    "ApprovalAdvisor": "traced_tools.advisors.approval",
    "ApprovalRequest": "traced_tools.tools.approval",
    "Approve": "traced_tools.core.approval",
    "AssistantMessage": "traced_tools.core.messages",
    "AsyncChatStream": "traced_tools.run_handles",
    "AuditAdvisor": "traced_tools.audit.advisor",
    "AuditError": "traced_tools.errors",
    "AuditTrail": "traced_tools.audit.trail",
    "AuditUnavailable": "traced_tools.errors",
    "AugmentedArguments": "traced_tools.tools.augmented_tool",
    "AuthenticationError": "traced_tools.errors",
    "BaseAdvisor": "traced_tools.loop.advisor",
    "CacheToolAdvisor": "traced_tools.advisors.cache_tool",
    "CallModel": "traced_tools.models.step",
    "ChatClient": "traced_tools.client",
    "ChatClientRequest": "traced_tools.loop.exchange",
    "ChatClientRequestSpec": "traced_tools.request_spec",
    "ChatClientResponse": "traced_tools.loop.exchange",
    "ChatMemory": "traced_tools.memory.chat_memory",
    "ChatMemoryError": "traced_tools.errors",
    "ChatMemoryRepository": "traced_tools.memory.repository",
    "ChatMemoryUnavailable": "traced_tools.errors",
    "ChatOptions": "traced_tools.core.options",
    "ChatRun": "traced_tools.run_handles",
    "ChatStream": "traced_tools.run_handles",
    "CheckedPart": "traced_tools.core.part_check",
    "CompactingChatMemory": "traced_tools.memory.compacting",
    "CompactionEntry": "traced_tools.memory.entries",
    "CompactionStrategy": "traced_tools.memory.strategies",
    "CompactionTrigger": "traced_tools.memory.triggers",
    "ConfigurationError": "traced_tools.errors",
    "ContentCapture": "traced_tools.observe.content",
    "ContextOverflow": "traced_tools.errors",
    "ConversationConflict": "traced_tools.errors",
    "ConversationDenied": "traced_tools.errors",
    "CutToolResults": "traced_tools.memory.strategies",
    "DelegatingToolCallbackResolver": "traced_tools.tools.resolver",
    "EntryPointToolCallbackResolver": "traced_tools.tools.resolver",
    "Evaluation": "traced_tools.core.evaluation",
    "EvaluationAdvisor": "traced_tools.advisors.evaluation",
    "EvaluationError": "traced_tools.errors",
    "ExecuteTools": "traced_tools.tools.batch",
    "FunctionToolCallback": "traced_tools.tools.callback",
    "GenaiPrices": "traced_tools.core.prices",
    "GivenInput": "traced_tools.core.tool_input",
    "ImagePart": "traced_tools.core.messages",
    "InMemoryChatMemoryRepository": "traced_tools.memory.in_memory",
    "InputRequest": "traced_tools.core.tool_input",
    "InputRequired": "traced_tools.errors",
    "InvalidArguments": "traced_tools.errors",
    "InvalidRequest": "traced_tools.errors",
    "InvalidResponse": "traced_tools.errors",
    "KeepTurns": "traced_tools.memory.strategies",
    "LoggingAdvisor": "traced_tools.advisors.log",
    "LoopLimitExceeded": "traced_tools.errors",
    "LoopLimits": "traced_tools.core.limits",
    "McpCallLost": "traced_tools.errors",
    "McpError": "traced_tools.errors",
    "McpRequestError": "traced_tools.errors",
    "McpToolError": "traced_tools.errors",
    "McpToolsChanged": "traced_tools.errors",
    "McpUnavailable": "traced_tools.errors",
    "MemoryAdvisor": "traced_tools.memory.advisor",
    "MemoryEntry": "traced_tools.memory.entries",
    "Message": "traced_tools.core.messages",
    "MessageEntry": "traced_tools.memory.entries",
    "MessageWindowChatMemory": "traced_tools.memory.window",
    "ModelError": "traced_tools.errors",
    "ModelJudge": "traced_tools.advisors.model_judge",
    "ModelTimeout": "traced_tools.errors",
    "NeedsEventLoop": "traced_tools.errors",
    "NestedRunWaits": "traced_tools.errors",
    "NestedUsage": "traced_tools.core.totals",
    "NotWaiting": "traced_tools.errors",
    "ObserverAdvisor": "traced_tools.events.observer",
    "OutputValidationError": "traced_tools.errors",
    "PartCheck": "traced_tools.core.part_check",
    "PendingCall": "traced_tools.core.approval",
    "PendingInput": "traced_tools.core.tool_input",
    "PendingStore": "traced_tools.approvals.pending_store",
    "PendingStoreError": "traced_tools.errors",
    "PendingStoreUnavailable": "traced_tools.errors",
    "Policy": "traced_tools.policy.policy",
    "PolicyAdvisor": "traced_tools.policy.advisor",
    "PolicyVerdict": "traced_tools.core.policy_verdict",
    "PriceTable": "traced_tools.core.prices",
    "Provide": "traced_tools.core.tool_input",
    "ProviderPart": "traced_tools.core.messages",
    "RateLimited": "traced_tools.errors",
    "ReasoningPart": "traced_tools.core.messages",
    "RedisChatMemoryRepository": "traced_tools.memory.redis",
    "Reject": "traced_tools.core.approval",
    "ResumeError": "traced_tools.errors",
    "RetryToolAdvisor": "traced_tools.advisors.retry_tool",
    "Rule": "traced_tools.policy.rule",
    "RunIdFilter": "traced_tools.run.log_filter",
    "SafeguardAdvisor": "traced_tools.advisors.safeguard",
    "SqlChatMemoryRepository": "traced_tools.memory.sql",
    "StateNotKept": "traced_tools.errors",
    "StaticToolCallbackResolver": "traced_tools.tools.resolver",
    "Step": "traced_tools.flow.flow",
    "StructuredOutputAdvisor": "traced_tools.advisors.structured_output",
    "Summarize": "traced_tools.memory.summarize",
    "SystemMessage": "traced_tools.core.messages",
    "TelemetryOptions": "traced_tools.observe.run_telemetry",
    "TextPart": "traced_tools.core.messages",
    "Tokens": "traced_tools.memory.triggers",
    "ToolAnnotations": "traced_tools.core.tool_definition",
    "ToolCall": "traced_tools.core.messages",
    "ToolCallback": "traced_tools.core.tool_definition",
    "ToolCallbackProvider": "traced_tools.tools.selection",
    "ToolCallbackResolver": "traced_tools.core.tool_definition",
    "ToolCallingAdvisor": "traced_tools.loop.tool_calling",
    "ToolCallingManager": "traced_tools.tools.manager",
    "ToolContent": "traced_tools.core.result_conversion",
    "ToolContext": "traced_tools.core.tool_context",
    "ToolDefinition": "traced_tools.core.tool_definition",
    "ToolDefinitionError": "traced_tools.errors",
    "ToolErrors": "traced_tools.core.tool_errors",
    "ToolExecutionError": "traced_tools.errors",
    "ToolExecutionResult": "traced_tools.core.tool_result",
    "ToolIndexError": "traced_tools.errors",
    "ToolInvocation": "traced_tools.tools.invocation",
    "ToolLoopAdvisor": "traced_tools.loop.advisor",
    "ToolMessage": "traced_tools.core.messages",
    "ToolMetadata": "traced_tools.core.tool_definition",
    "ToolNotFoundError": "traced_tools.errors",
    "ToolOutcomeUnknown": "traced_tools.errors",
    "ToolParam": "traced_tools.tools.schema.signature",
    "ToolResult": "traced_tools.core.tool_result",
    "ToolResultPart": "traced_tools.core.messages",
    "ToolSearchToolCallingAdvisor": "traced_tools.search.advisor",
    "ToolTimeout": "traced_tools.errors",
    "TracedToolsError": "traced_tools.errors",
    "TranscriptAdvisor": "traced_tools.loop.advisor",
    "Turns": "traced_tools.memory.triggers",
    "Undecided": "traced_tools.core.approval",
    "UnreadableConversation": "traced_tools.errors",
    "Usage": "traced_tools.core.messages",
    "UserMessage": "traced_tools.core.messages",
    "WaitingApproval": "traced_tools.approvals.pending_rows",
    "WindowShare": "traced_tools.memory.triggers",
    "WorkerPool": "traced_tools.flow.workers",
    "__version__": "traced_tools._version",
    "advisor": "traced_tools.advisors.function",
    "augmented": "traced_tools.tools.augmentation",
    "configure": "traced_tools.otel.configure",
    "dump_messages": "traced_tools.core.messages",
    "load_messages": "traced_tools.core.messages",
    "perform": "traced_tools.flow.steps",
    "recall_tool": "traced_tools.memory.recall",
    "tool": "traced_tools.tools.decorator",
    "tool_callbacks": "traced_tools.tools.selection",
}

__all__ = [
    "MEMORY_ORDER",
    "TOOL_LOOP_ORDER",
    "Advisor",
    "AdvisorChain",
    "AdvisorChainError",
    "AlreadyDecided",
    "ApprovalAdvisor",
    "ApprovalRequest",
    "Approve",
    "AssistantMessage",
    "AsyncChatStream",
    "AuditAdvisor",
    "AuditError",
    "AuditTrail",
    "AuditUnavailable",
    "AugmentedArguments",
    "AuthenticationError",
    "BaseAdvisor",
    "CacheToolAdvisor",
    "CallModel",
    "ChatClient",
    "ChatClientRequest",
    "ChatClientRequestSpec",
    "ChatClientResponse",
    "ChatMemory",
    "ChatMemoryError",
    "ChatMemoryRepository",
    "ChatMemoryUnavailable",
    "ChatOptions",
    "ChatRun",
    "ChatStream",
    "CheckedPart",
    "CompactingChatMemory",
    "CompactionEntry",
    "CompactionStrategy",
    "CompactionTrigger",
    "ConfigurationError",
    "ContentCapture",
    "ContextOverflow",
    "ConversationConflict",
    "ConversationDenied",
    "CutToolResults",
    "DelegatingToolCallbackResolver",
    "EntryPointToolCallbackResolver",
    "Evaluation",
    "EvaluationAdvisor",
    "EvaluationError",
    "ExecuteTools",
    "FunctionToolCallback",
    "GenaiPrices",
    "GivenInput",
    "ImagePart",
    "InMemoryChatMemoryRepository",
    "InputRequest",
    "InputRequired",
    "InvalidArguments",
    "InvalidRequest",
    "InvalidResponse",
    "KeepTurns",
    "LoggingAdvisor",
    "LoopLimitExceeded",
    "LoopLimits",
    "McpCallLost",
    "McpError",
    "McpRequestError",
    "McpToolError",
    "McpToolsChanged",
    "McpUnavailable",
    "MemoryAdvisor",
    "MemoryEntry",
    "Message",
    "MessageEntry",
    "MessageWindowChatMemory",
    "ModelError",
    "ModelJudge",
    "ModelTimeout",
    "NeedsEventLoop",
    "NestedRunWaits",
    "NestedUsage",
    "NotWaiting",
    "ObserverAdvisor",
    "OutputValidationError",
    "PartCheck",
    "PendingCall",
    "PendingInput",
    "PendingStore",
    "PendingStoreError",
    "PendingStoreUnavailable",
    "Policy",
    "PolicyAdvisor",
    "PolicyVerdict",
    "PriceTable",
    "Provide",
    "ProviderPart",
    "RateLimited",
    "ReasoningPart",
    "RedisChatMemoryRepository",
    "Reject",
    "ResumeError",
    "RetryToolAdvisor",
    "Rule",
    "RunIdFilter",
    "SafeguardAdvisor",
    "SqlChatMemoryRepository",
    "StateNotKept",
    "StaticToolCallbackResolver",
    "Step",
    "StructuredOutputAdvisor",
    "Summarize",
    "SystemMessage",
    "TelemetryOptions",
    "TextPart",
    "Tokens",
    "ToolAnnotations",
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
    "ToolIndexError",
    "ToolInvocation",
    "ToolLoopAdvisor",
    "ToolMessage",
    "ToolMetadata",
    "ToolNotFoundError",
    "ToolOutcomeUnknown",
    "ToolParam",
    "ToolResult",
    "ToolResultPart",
    "ToolSearchToolCallingAdvisor",
    "ToolTimeout",
    "TracedToolsError",
    "TranscriptAdvisor",
    "Turns",
    "Undecided",
    "UnreadableConversation",
    "Usage",
    "UserMessage",
    "WaitingApproval",
    "WindowShare",
    "WorkerPool",
    "__version__",
    "advisor",
    "augmented",
    "configure",
    "dump_messages",
    "load_messages",
    "perform",
    "recall_tool",
    "tool",
    "tool_callbacks",
]

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
