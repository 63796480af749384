"""The subjects of observations: what an observation needs of a model, a question and an answer.

These are protocols, so that nothing that observes depends on the classes of rooms below.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from traced_tools.core.messages import AssistantMessage, Message, ToolCall, Usage

if TYPE_CHECKING:
    from traced_tools.core.options import ChatOptions
    from traced_tools.core.policy_verdict import PolicyVerdict
    from traced_tools.core.tool_definition import ToolCallback, ToolDefinition


class ObservedEntry(Protocol):
    """A message in a memory."""

    @property
    def id(self) -> str:
        """The id of its entry."""

    @property
    def message(self) -> Message:
        """The message."""


class ObservedModel(Protocol):
    """A chat model or an embedding model."""

    @property
    def model(self) -> str:
        """The model's name."""

    @property
    def provider(self) -> str:
        """The provider, as in `gen_ai.provider.name`."""

    @property
    def server_address(self) -> str | None:
        """The host that is asked; None for a model in this process."""

    @property
    def server_port(self) -> int | None:
        """The port that is asked."""


class ObservedTools(Protocol):
    """The tools of a request."""

    @property
    def definitions(self) -> Sequence[ToolDefinition]:
        """What the model knows of each tool."""

    @property
    def by_name(self) -> Mapping[str, ToolCallback]:
        """The tools by name."""

    def __iter__(self) -> Iterator[ToolCallback]:
        """Iterate over the tools."""


class AdvisedCall(Protocol):
    """A call as it has passed the advisors."""

    @property
    def intent(self) -> str | None:
        """The model's reason for the call, if known."""

    @property
    def arguments(self) -> str:
        """The arguments for the tool, canonical JSON."""

    @property
    def code(self) -> str | None:
        """The reason code of an advisor that lets the call run."""

    @property
    def rule(self) -> str | None:
        """The policy's rule that is for the call, if there is one."""

    @property
    def policy(self) -> PolicyVerdict | None:
        """The verdict of the policy that has let the call pass, if one has."""


class ConversationInput(Protocol):
    """What an agent or a model is asked."""

    @property
    def messages(self) -> Sequence[Message]:
        """The conversation."""

    @property
    def tools(self) -> ObservedTools:
        """The tools that may be called."""


class ModelInput(ConversationInput, Protocol):
    """What a chat model is asked in one iteration."""

    @property
    def options(self) -> ChatOptions:
        """How the model is asked."""

    @property
    def iteration(self) -> int:
        """The iteration of the loop, from 1; 0 outside a loop."""


class ModelOutput(Protocol):
    """What an agent or a model answers."""

    @property
    def message(self) -> AssistantMessage:
        """The text, calls and reasoning."""

    @property
    def finish_reason(self) -> str | None:
        """Why the model stopped."""


class ModelReport(Protocol):
    """What a model reports of one call."""

    @property
    def usage(self) -> Usage | None:
        """The tokens, if the provider reports them."""

    @property
    def model(self) -> str | None:
        """The model that answered, if the provider reports it."""


class ModelAnswer(ModelReport, ModelOutput, Protocol):
    """The answer to one call of a chat model."""

    @property
    def tool_calls(self) -> Sequence[ToolCall]:
        """The calls that the model asks for."""

    @property
    def id(self) -> str | None:
        """The provider's id of the answer."""


class EmbeddingAnswer(ModelReport, Protocol):
    """The answer to one call of an embedding model."""

    @property
    def embeddings(self) -> Sequence[Sequence[float]]:
        """The vectors."""


class ModelChunk(Protocol):
    """A piece of a streamed answer."""

    @property
    def visible_text(self) -> str:
        """The text in it that a reader sees."""

    @property
    def restarts(self) -> bool:
        """Whether the provider starts its answer again with this piece."""

    def calls(self) -> Sequence[ToolCall]:
        """Return the pieces of tool calls in it."""
