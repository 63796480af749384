"""Names that are still importable from their former package, for one release and with a warning."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

MOVED: dict[str, dict[str, str]] = {
    "traced_tools": {
        "traced_tools.advisors": "ModelJudge",
        "traced_tools.approvals": "PendingStore WaitingApproval",
        "traced_tools.core": (
            "CheckedPart Evaluation GenaiPrices GivenInput InputRequest NestedUsage PartCheck PendingInput "
            "PolicyVerdict PriceTable Provide ProviderPart ReasoningPart ToolAnnotations ToolCallback "
            "ToolCallbackResolver ToolContent ToolDefinition ToolErrors ToolExecutionResult ToolMetadata "
            "ToolResultPart Undecided dump_messages load_messages"
        ),
        "traced_tools.errors": (
            "AdvisorChainError AlreadyDecided AuditError AuditUnavailable ChatMemoryError ChatMemoryUnavailable "
            "ContextOverflow ConversationConflict ConversationDenied EvaluationError InputRequired "
            "InvalidArguments InvalidRequest InvalidResponse McpCallLost McpError McpRequestError McpToolError "
            "McpToolsChanged McpUnavailable NeedsEventLoop NestedRunWaits NotWaiting PendingStoreError "
            "PendingStoreUnavailable ResumeError StateNotKept ToolDefinitionError ToolIndexError "
            "ToolNotFoundError ToolOutcomeUnknown ToolTimeout UnreadableConversation"
        ),
        "traced_tools.flow": "Step WorkerPool perform",
        "traced_tools.loop": (
            "AdvisorChain MEMORY_ORDER TOOL_LOOP_ORDER ToolCallingAdvisor ToolLoopAdvisor TranscriptAdvisor"
        ),
        "traced_tools.memory": (
            "ChatMemory ChatMemoryRepository CompactingChatMemory CompactionEntry CompactionStrategy "
            "CompactionTrigger CutToolResults InMemoryChatMemoryRepository KeepTurns MemoryEntry MessageEntry "
            "MessageWindowChatMemory RedisChatMemoryRepository SqlChatMemoryRepository Summarize Tokens Turns "
            "WindowShare recall_tool"
        ),
        "traced_tools.models": "CallModel",
        "traced_tools.run": "RunIdFilter",
        "traced_tools.tools": (
            "AugmentedArguments DelegatingToolCallbackResolver EntryPointToolCallbackResolver ExecuteTools "
            "FunctionToolCallback StaticToolCallbackResolver ToolCallbackProvider ToolCallingManager "
            "ToolInvocation augmented tool_callbacks"
        ),
    },
    "traced_tools.events": {
        "traced_tools.observe": (
            "AnswerEvaluated Delta Event IterationFinished IterationStarted MemoryCompacted MemoryRead "
            "MemoryStored MissingResultsAnswered ModelResponded RunFinished RunStarted TextDelta "
            "ToolArgumentsDelta ToolDecided ToolEvent ToolFinished ToolIntended ToolProgressed ToolStarted "
            "ToolsChanged ToolsDiscovered"
        ),
    },
    "traced_tools.search": {
        "traced_tools.core": "Composite Eviction Lru Never Ttl",
    },
    "traced_tools.testing": {
        "traced_tools.demo": "OUTCOMES Scenario",
        "traced_tools.memory": "check_chat_memory_repository",
    },
    "traced_tools.tools.search": {
        "traced_tools.core": "Composite Eviction Lru Never Ttl",
        "traced_tools.search": (
            "DecisionToolIndex HybridToolIndex InMemoryVectorStore KeywordToolIndex PgVectorStore RegexToolIndex "
            "ToolIndex ToolMatch ToolVector VectorStore VectorToolIndex"
        ),
    },
}
"""Former package -> the place that offers the names now -> the names, with spaces between them."""


def with_moved(package: str, load: Callable[[str], object]) -> Callable[[str], object]:
    """Return a `__getattr__` for `package` that also imports the names that the package offered before.

    Args:
        package: the name of the package.
        load: imports the names that the package offers now.
    """

    def load_or_warn(name: str) -> object:
        for place, names in MOVED[package].items():
            if name in names.split():
                import warnings  # few processes need it

                warnings.warn(
                    f"{name} has moved: import it from {place}; the next release removes it from {package}",
                    DeprecationWarning,
                    stacklevel=2,
                )
                value: object = getattr(import_module(place), name)
                return value
        return load(name)

    return load_or_warn
