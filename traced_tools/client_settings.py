"""The settings of a client and of its requests, and their checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypedDict

from traced_tools.core.checks import expect, expect_each
from traced_tools.core.frozen import frozen
from traced_tools.core.identity import check_principal
from traced_tools.core.limits import LoopLimits
from traced_tools.core.messages import ImagePart, Message, SystemMessage, UserMessage
from traced_tools.core.options import ChatOptions
from traced_tools.core.tool_definition import ToolCallbackResolver
from traced_tools.core.tool_errors import ToolErrors
from traced_tools.loop.advisor import Advisor, ToolLoopAdvisor
from traced_tools.loop.paused_runs import KeepsPausedRuns
from traced_tools.loop.tool_calling import ToolCallingAdvisor
from traced_tools.models.base import ChatModel
from traced_tools.observe.names import OTHER
from traced_tools.observe.run_attributes import RunAttributes
from traced_tools.observe.run_telemetry import TelemetryOptions
from traced_tools.tools.advice import check_advisors
from traced_tools.tools.selection import ToolSelection

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

_LONGEST_VERSION: Final = 64
_MOST_AGENT_ID: Final = 128


class RequestSettings(TypedDict, total=False):
    """The keyword arguments that `ChatClient.prompt` and `ChatClient.resume` share.

    A function of your own that passes them on can declare `**settings: Unpack[RequestSettings]`.

    Attributes:
        tools: the tools, instead of the client's: functions, objects with `@tool` methods, `ToolCallback`s,
            `ToolCallbackProvider`s (asked when a run begins), names that the client's resolver knows, and nested
            sequences of these.
        advisors: advisors in addition to the client's.
        options: the model's options; they override the client's.
        tool_context: data about the caller for tools, merged into the client's by key; a value here replaces the
            client's value.
        limits: the limits of the run, instead of the client's.
        tool_errors: the error policy, instead of the client's.
        params: values that advisors read as `request.context`. Each run gets a copy, including each `dict`, `list`,
            `set` and `tuple` in it. Runs share all other objects.
    """

    tools: object
    advisors: Iterable[Advisor]
    options: ChatOptions | None
    tool_context: Mapping[str, Any] | None
    limits: LoopLimits | None
    tool_errors: ToolErrors | None
    params: Mapping[str, Any] | None


@frozen(kw_only=True)
class ClientSettings:
    """The arguments of a `ChatClient`; see there."""

    model: ChatModel
    name: str
    version: str | None
    agent_id: str | None
    system: str | None
    tools: ToolSelection
    advisors: tuple[Advisor, ...]
    options: ChatOptions | None
    tool_context: Mapping[str, Any]
    tool_calling: bool
    tool_calling_advisor: ToolCallingAdvisor | None
    limits: LoopLimits | None
    tool_errors: ToolErrors | None
    resolver: ToolCallbackResolver | None
    resolver_fallback: bool
    telemetry: TelemetryOptions | None
    attributes: RunAttributes
    principal: str | None
    approval_key: bytes | str | Sequence[bytes | str] | None
    pending_store: KeepsPausedRuns | None

    def __post_init__(self) -> None:
        """Raise `TypeError` or `ValueError` for an invalid argument."""
        expect("model", self.model, ChatModel, "a ChatModel, such as OpenAIChatModel('...')")
        expect("model.model", getattr(self.model, "model", None), str, "a str: set it on your ChatModel")
        expect("model.provider", getattr(self.model, "provider", None), str, "a str: set it on your ChatModel")
        check_agent("name", self.name, self.version, self.agent_id)
        expect("tool_calling", self.tool_calling, bool, "True or False")
        loop = self.tool_calling_advisor
        expect("tool_calling_advisor", loop, (ToolLoopAdvisor, type(None)), "a ToolCallingAdvisor or None")
        expect("telemetry", self.telemetry, (TelemetryOptions, type(None)), "a TelemetryOptions or None")
        check_principal("principal", self.principal)
        key = self.approval_key
        expect("approval_key", key, (bytes, str, list, tuple, type(None)), "bytes, a str, a list or None")
        if isinstance(key, list | tuple):
            expect_each("approval_key", key, (bytes, str), "bytes or a str")
        expect("pending_store", self.pending_store, (KeepsPausedRuns, type(None)), "a PendingStore or None")
        _check_common(self.system, self.options, self.limits, self.tool_errors)


def check_agent(argument: str, name: str, version: str | None, agent_id: str | None) -> None:
    """Raise `TypeError` or `ValueError` for an invalid name (the value of `argument`), version or id of an agent."""
    expect(argument, name, str, "a str")
    if not name.strip():
        raise ValueError(f"{argument} must not be blank: it names the agent in telemetry")
    _check_version(version)
    _check_agent_id(agent_id)


def _check_version(version: str | None) -> None:
    expect("version", version, (str, type(None)), "a str or None")
    if version is not None and not (version.strip() and version.isprintable() and len(version) <= _LONGEST_VERSION):
        raise ValueError(
            f"version must have 1 to {_LONGEST_VERSION} printable characters, because it is a metric label: "
            "pass version='2.1', or omit it"
        )
    if version == OTHER:
        raise ValueError(f"version must not be {OTHER!r}, which stands for all versions beyond the limit: omit it")


def _check_agent_id(agent_id: str | None) -> None:
    expect("agent_id", agent_id, (str, type(None)), "a str or None")
    if agent_id is not None and not (1 <= len(agent_id) <= _MOST_AGENT_ID and agent_id.isprintable()):
        raise ValueError(f"agent_id must have 1 to {_MOST_AGENT_ID} characters, all of them printable")


def check_resolver(resolver: object, resolver_fallback: object) -> None:
    """Raise `TypeError` or `ValueError` for an invalid resolver of tools, or a fallback to none."""
    expect("resolver", resolver, (ToolCallbackResolver, type(None)), "a ToolCallbackResolver or None")
    expect("resolver_fallback", resolver_fallback, bool, "True or False")
    if resolver_fallback and resolver is None:
        raise ValueError("resolver_fallback=True needs a resolver=")


def checked_advisors(advisors: Iterable[Advisor]) -> tuple[Advisor, ...]:
    """Return advisors as a tuple; raise `TypeError` or `AdvisorChainError` for an invalid one."""
    expect("advisors", advisors, Iterable, "a sequence of Advisor objects")
    advisors = tuple(advisors)
    check_advisors(advisors)
    return advisors


class QuestionSettings(TypedDict, total=False):
    """The keyword arguments of `ChatClient.prompt` and `ChatClient.submit` about what a run is asked.

    Attributes:
        messages: the conversation so far, before the user's message.
        system: the instructions, instead of the client's; not blank.
        conversation_id: identifies the conversation in telemetry and for memories.
        principal: on whose behalf the run is, such as the id of a user.
        attributes: attributes of the run, such as its tenant.
    """

    messages: Iterable[Message]
    system: str | None
    conversation_id: str | None
    principal: str | None
    attributes: Mapping[str, AttributeValue] | None


def check_request(method: str, settings: RequestSettings, system: str | None = None) -> None:
    """Raise `TypeError` or `ValueError` for an invalid argument of `method`, or one that it does not have."""
    check_names(method, settings, RequestSettings)
    _check_common(system, settings.get("options"), settings.get("limits"), settings.get("tool_errors"))


def check_names(method: str, arguments: Iterable[str], accepted: type) -> None:
    """Raise `TypeError` for the name of a keyword argument that `method` does not have."""
    for name in arguments:
        if name not in accepted.__annotations__:
            raise TypeError(f"ChatClient.{method}() got an unexpected keyword argument {name!r}")


def _check_common(system: object, options: object, limits: object, tool_errors: object) -> None:
    """Check the arguments that a client and its requests have in common."""
    expect("system", system, (str, type(None)), "a str or None")
    if isinstance(system, str):
        check_not_blank("system", SystemMessage(system))
    expect("options", options, (ChatOptions, type(None)), "a ChatOptions or None")
    expect("limits", limits, (LoopLimits, type(None)), "a LoopLimits or None")
    expect("tool_errors", tool_errors, (ToolErrors, type(None)), "a ToolErrors or None")


def check_not_blank(argument: str, message: Message) -> None:
    """Raise `ValueError` if a user or system message is blank, because providers refuse it."""
    if isinstance(message, UserMessage):
        if not any(isinstance(part, ImagePart) or part.text.strip() for part in message.parts):
            raise ValueError(f"{argument} must not be blank: it needs a text or an image")
    elif isinstance(message, SystemMessage) and not message.text.strip():
        raise ValueError(f"{argument} must not be blank: it needs a text; omit it for no instructions")
