"""The client: assemble a request, choose how to run it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from traced_tools.advisors.base import Advisor, ToolLoopAdvisor, TranscriptAdvisor
from traced_tools.advisors.chain import AdvisorChain
from traced_tools.advisors.exchange import ChatClientRequest, ChatClientResponse
from traced_tools.advisors.tool_calling import ToolCallingAdvisor
from traced_tools.core.checks import checked_mapping, expect, expect_each
from traced_tools.core.conversation import with_results
from traced_tools.core.limits import DEFAULT_LIMITS, LoopLimits
from traced_tools.core.messages import (
    ANY_MESSAGE,
    MESSAGE_TYPES,
    ImagePart,
    Message,
    SystemMessage,
    TextPart,
    UserMessage,
)
from traced_tools.core.options import NO_OPTIONS, ChatOptions
from traced_tools.core.tool_definition import ToolCallbackResolver
from traced_tools.core.tool_errors import ANSWER_ERRORS, ToolErrors
from traced_tools.flow.flow import Flow, acall, call
from traced_tools.models.base import ChatModel
from traced_tools.observe.observations import observe_run
from traced_tools.observe.run_attributes import check_attributes, merge_attributes
from traced_tools.observe.run_telemetry import TelemetryOptions
from traced_tools.run.context import RunContext
from traced_tools.run_handles import AsyncChatStream, ChatRun, ChatStream
from traced_tools.tools.advice import check_advisors
from traced_tools.tools.selection import ToolSelection
from traced_tools.tools.toolset import NO_TOOLS

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

UserContent = str | UserMessage | Sequence[TextPart | ImagePart]


class ChatClient:
    """Asks a model, with tools, through a chain of advisors.

    A client is immutable and safe to share between threads and tasks. `copy.deepcopy` returns the client itself.

    Args:
        model: the model to ask.
        name: the agent's name in telemetry; set in code and bounded, since it is a metric label.
        system: instructions for every request.
        tools: tools for requests that bring none of their own.
        advisors: advisors for every request.
        options: how the model is asked; what a request sets wins.
        tool_context: what tools may know of the caller; never sent to the model. A request's own is merged into it.
        tool_calling_advisor: the loop to use instead of a plain `ToolCallingAdvisor`.
        limits: how far a run may go.
        tool_errors: what happens when a tool fails.
        resolver: finds the tools that `tools` names.
        resolver_fallback: whether it is also asked for a tool that the model names and the request does not carry.
        telemetry: what to emit, and where to.
        attributes: attributes of every run, such as a team; those of a request are merged into them.

    Raises:
        TypeError, ValueError: for an argument that cannot be used; the text names it and what is accepted.
        AdvisorChainError: for advisors that do not fit together.
        ToolDefinitionError: for something in `tools` that is no tool, or two tools of one name.
        ToolNotFoundError: for a name in `tools` that the resolver does not know.

    """

    def __init__(
        self,
        model: ChatModel,
        *,
        name: str = "assistant",
        system: str | None = None,
        tools: object = (),
        advisors: Iterable[Advisor] = (),
        options: ChatOptions | None = None,
        tool_context: Mapping[str, Any] | None = None,
        tool_calling_advisor: ToolCallingAdvisor | None = None,
        limits: LoopLimits | None = None,
        tool_errors: ToolErrors | None = None,
        resolver: ToolCallbackResolver | None = None,
        resolver_fallback: bool = False,
        telemetry: TelemetryOptions | None = None,
        attributes: Mapping[str, AttributeValue] | None = None,
    ) -> None:
        expect("model", model, ChatModel, "a ChatModel, such as OpenAIChatModel('...')")
        expect("model.model", getattr(model, "model", None), str, "a str: set it on your ChatModel")
        expect("model.provider", getattr(model, "provider", None), str, "a str: set it on your ChatModel")
        expect("name", name, str, "a str")
        if not name.strip():
            raise ValueError("name must not be blank: it names the agent in telemetry")
        expect(
            "tool_calling_advisor", tool_calling_advisor, (ToolLoopAdvisor, type(None)), "a ToolCallingAdvisor or None"
        )
        expect("resolver", resolver, (ToolCallbackResolver, type(None)), "a ToolCallbackResolver or None")
        expect("resolver_fallback", resolver_fallback, bool, "True or False")
        if resolver_fallback and resolver is None:
            raise ValueError("resolver_fallback=True needs a resolver=")
        expect("telemetry", telemetry, (TelemetryOptions, type(None)), "a TelemetryOptions or None")
        _check_settings(system, options, limits, tool_errors)
        self._tools = ToolSelection(tools, resolver)
        self._settings: dict[str, Any] = {
            "model": model,
            "name": name,
            "system": system,
            "tools": self._tools,
            "advisors": _advisors(advisors),
            "options": options,
            "tool_context": checked_mapping("tool_context", tool_context),
            "tool_calling_advisor": tool_calling_advisor,
            "limits": limits,
            "tool_errors": tool_errors,
            "resolver": resolver,
            "resolver_fallback": resolver_fallback,
            "telemetry": telemetry,
            "attributes": check_attributes(attributes),
        }
        self._chain = self._chain_with((), tool_calling=True)

    @property
    def name(self) -> str:
        """The agent's name in telemetry."""
        name: str = self._settings["name"]
        return name

    def replace(self, **changes: Any) -> ChatClient:
        """Return a client with `changes` to the arguments this one was made with."""
        return ChatClient(**{**self._settings, **changes})

    def prompt(
        self,
        user: UserContent | None = None,
        *,
        messages: Iterable[Message] = (),
        system: str | None = None,
        tools: object = None,
        advisors: Iterable[Advisor] = (),
        options: ChatOptions | None = None,
        tool_context: Mapping[str, Any] | None = None,
        conversation_id: str | None = None,
        tool_calling: bool = True,
        limits: LoopLimits | None = None,
        tool_errors: ToolErrors | None = None,
        params: Mapping[str, Any] | None = None,
        attributes: Mapping[str, AttributeValue] | None = None,
    ) -> ChatClientRequestSpec:
        """Assemble a request; nothing is sent before one of its `call`, `acall`, `stream`, `astream`, `start`.

        Args:
            user: what the user says: a text, parts, or a message; not blank.
            messages: the conversation so far; sent after `system`, unless it begins with that, and before `user`. A
                call without a result gets one that says it was not run.
            system: instructions, instead of the client's; not blank.
            tools: functions, objects with `@tool` methods, `ToolCallback`s, `ToolCallbackProvider`s (asked when a run
                begins), and names that the client's resolver knows, nested at will; instead of the client's.
            advisors: further advisors.
            options: how the model is asked, on top of the client's.
            tool_context: what tools may know of the caller, merged into the client's.
            conversation_id: names the conversation in telemetry and for memories.
            tool_calling: False leaves the loop out: a response may then ask for tools that the caller runs.
            limits: how far the run may go, instead of the client's.
            tool_errors: what happens when a tool fails, instead of the client's.
            params: what advisors read as `request.context`. Each run gets a copy, and a copy of each `dict`, `list`,
                `set` and `tuple` in it; other objects are shared between runs.
            attributes: attributes of the run, such as its user and tenant, merged into the client's: on its span,
                its typed events and its audit records, whatever `capture` says, and never a metric label. Up to 32 keys
                of up to 64 letters, digits, `.`, `_` and `-`; values are str (up to 256 characters), bool, int, float,
                or sequences of up to 32 of one of these. Runs that begin inside of it have them as well.

        Raises:
            TypeError, ValueError: for an argument that cannot be used; the text names it and what is accepted.
            ToolNotFoundError: for a name in `tools` that the resolver does not know.
        """
        _check_settings(system, options, limits, tool_errors)
        expect("conversation_id", conversation_id, (str, type(None)), "a str or None")
        expect("tool_calling", tool_calling, bool, "True or False")
        own = self._settings
        added = _advisors(advisors)
        chain = self._chain if tool_calling and not added else self._chain_with(added, tool_calling=tool_calling)
        return ChatClientRequestSpec(
            chain=chain,
            messages=_conversation(own["system"] if system is None else system, messages, user),
            tools=self._tools if tools is None else ToolSelection(tools, own["resolver"]),
            options=(own["options"] or NO_OPTIONS).merged(options),
            context=_copied(checked_mapping("params", params)),
            new_run=partial(
                RunContext,
                agent=own["name"],
                conversation_id=conversation_id,
                tool_context={**own["tool_context"], **checked_mapping("tool_context", tool_context)},
                limits=limits or own["limits"] or DEFAULT_LIMITS,
                tool_errors=tool_errors or own["tool_errors"] or ANSWER_ERRORS,
                telemetry=own["telemetry"],
                tool_advisors=chain.tool_advisors,
                listeners=chain.listeners,
                resolver_fallback=own["resolver"] if own["resolver_fallback"] else None,
                attributes=merge_attributes(own["attributes"], check_attributes(attributes)),
            ),
        )

    def _chain_with(self, added: Sequence[Advisor], *, tool_calling: bool) -> AdvisorChain:
        """Return the chain of this client's advisors and `added` ones; a tool loop joins unless there or unwanted."""
        advisors = [*self._settings["advisors"], *added]
        if tool_calling and not any(isinstance(advisor, ToolLoopAdvisor) for advisor in advisors):
            advisors.append(_loop_for(self._settings["tool_calling_advisor"] or ToolCallingAdvisor(), advisors))
        if not tool_calling:
            advisors = [advisor for advisor in advisors if not isinstance(advisor, ToolLoopAdvisor)]
        return AdvisorChain(advisors, self._settings["model"])

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __repr__(self) -> str:
        return f"<ChatClient {self.name!r}: {len(self._tools)} tools, {len(self._settings['advisors'])} advisors>"


@dataclass(frozen=True, slots=True, repr=False)
class ChatClientRequestSpec:
    """A request ready to run, any number of times; each run is complete and independent."""

    chain: AdvisorChain
    messages: tuple[Message, ...]
    tools: ToolSelection
    options: ChatOptions
    context: Mapping[str, Any]
    new_run: Callable[[], RunContext]

    def call(self) -> ChatClientResponse:
        """Run, blocking, and return the answer."""
        return call(self._begin())

    async def acall(self) -> ChatClientResponse:
        """Run on asyncio and return the answer."""
        return await acall(self._begin())

    def stream(self) -> ChatStream:
        """Run, blocking, and give the answer in chunks as they arrive.

        The run begins when the first chunk is asked for, in the context of the code that asks.
        """
        return ChatStream(partial(self._begin, streaming=True))

    def astream(self) -> AsyncChatStream:
        """Run on asyncio and give the answer in chunks as they arrive; begins as `stream` does."""
        return AsyncChatStream(partial(self._begin, streaming=True))

    def start(self) -> ChatRun:
        """Return the run with the caller as its driver: nothing happens but what the caller performs.

        The run begins when the first step is asked for, in the context of the code that asks.
        """
        return ChatRun(self._begin)

    def _begin(self, *, streaming: bool = False) -> Flow[ChatClientResponse]:
        """Return the flow of a new run."""
        run = self.new_run()
        run.complete = self.messages
        if streaming:
            run.delivery = self.chain.new_delivery()
        context = _copied(self.context) if self.context else {}  # its own, because advisors may write to it
        return self._run(ChatClientRequest(self.messages, NO_TOOLS, self.options, context, 0, run))

    async def _run(self, request: ChatClientRequest) -> ChatClientResponse:
        run = request.run
        with run, observe_run(run, self.chain.model, request) as observed:
            run.trace_id = observed.trace_id
            request = request.replace(tools=await self.tools.tool_set())
            observed.began(request)
            response = await self.chain.run(request)
            if response.stop_reason == "answered" and not run.totals.inference_calls:
                response = replace(response, stop_reason="advisor")  # no model was asked
            observed.answered(response)
        results = response.tool_results
        if not results or any(results is each for each in run.reached):  # none that an advisor put in their place
            results = run.all_results()
        return replace(response, usage=run.totals.usage.total, tool_results=results)

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __repr__(self) -> str:
        return f"<ChatClientRequestSpec: {len(self.messages)} messages, {len(self.tools)} tools>"


def _loop_for(loop: ToolCallingAdvisor, advisors: Iterable[Advisor]) -> ToolCallingAdvisor:
    """Return `loop`, or a copy without history of its own when an advisor inside it keeps the transcript."""
    if any(isinstance(each, TranscriptAdvisor) and each.order > loop.order for each in advisors):
        loop = copy.copy(loop)
        loop.keep_history = False
    return loop


def _conversation(system: str | None, messages: Iterable[Message], user: UserContent | None) -> tuple[Message, ...]:
    expect("messages", messages, Iterable, "a sequence of messages")
    middle = tuple(messages)
    expect_each("messages", middle, MESSAGE_TYPES, ANY_MESSAGE)
    # a conversation that is gone on with begins with the words it was sent with
    for index, message in enumerate(middle):
        _check_says_something(f"messages[{index}]", message)
    before = () if system is None or middle[:1] == (SystemMessage(system),) else (SystemMessage(system),)
    conversation = (*before, *middle, *(() if user is None else (_user_message(user),)))
    if not conversation:
        raise ValueError("prompt needs something to send: give user=, messages= or system=")
    return with_results(conversation)


def _user_message(user: UserContent) -> UserMessage:
    if not isinstance(user, UserMessage):
        expect("user", user, (str, list, tuple), "a str, a UserMessage, or a list of TextPart and ImagePart")
        if not isinstance(user, str):
            expect_each("user", user, (TextPart, ImagePart), "a TextPart or an ImagePart")
        user = UserMessage(user)
    _check_says_something("user", user)
    return user


def _check_says_something(argument: str, message: Message) -> None:
    """Raise `ValueError` for a blank message of the user or the system, which providers refuse."""
    if isinstance(message, UserMessage):
        if not any(isinstance(part, ImagePart) or part.text.strip() for part in message.parts):
            raise ValueError(f"{argument} must not be blank: it needs a text or an image")
    elif isinstance(message, SystemMessage) and not message.text.strip():
        raise ValueError(f"{argument} must not be blank: it needs a text; leave it out for no instructions")


def _advisors(advisors: Iterable[Advisor]) -> tuple[Advisor, ...]:
    expect("advisors", advisors, Iterable, "a sequence of Advisor objects")
    found = tuple(advisors)
    check_advisors(found)
    return found


def _check_settings(system: object, options: object, limits: object, tool_errors: object) -> None:
    expect("system", system, (str, type(None)), "a str or None")
    if isinstance(system, str):
        _check_says_something("system", SystemMessage(system))
    expect("options", options, (ChatOptions, type(None)), "a ChatOptions or None")
    expect("limits", limits, (LoopLimits, type(None)), "a LoopLimits or None")
    expect("tool_errors", tool_errors, (ToolErrors, type(None)), "a ToolErrors or None")


def _copied(value: Any, copies: dict[int, Any] | None = None) -> Any:
    """Return `value` with a copy of each plain container in it; `copies`, by id, ends the recursion of a cycle."""
    copies = {} if copies is None else copies
    if id(value) in copies:
        return copies[id(value)]
    if type(value) is tuple:
        return tuple(_copied(each, copies) for each in value)
    if type(value) is set:
        return copies.setdefault(id(value), set(value))
    if type(value) is list:
        elements = copies[id(value)] = []
        elements.extend(_copied(each, copies) for each in value)
        return elements
    if type(value) is dict:
        items = copies[id(value)] = {}
        items.update((key, _copied(each, copies)) for key, each in value.items())
        return items
    return value
