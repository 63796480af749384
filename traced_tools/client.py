"""The client: it assembles requests to a model and runs them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from typing_extensions import TypeForm

from traced_tools.client_settings import (
    ClientSettings,
    check_names,
    check_not_blank,
    check_request,
    check_resolver,
    checked_advisors,
)
from traced_tools.client_settings import QuestionSettings as QuestionSettings
from traced_tools.client_settings import RequestSettings as RequestSettings
from traced_tools.core.approval import Approve, CallDecision, DecidedPause, Denied, Reject, WaitingRun
from traced_tools.core.checks import checked_mapping, expect, expect_each
from traced_tools.core.conversation import open_calls, with_results
from traced_tools.core.identity import check_principal
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
from traced_tools.core.part_check import Checkable, CheckedPart, PartCheck
from traced_tools.core.state_key import StateKey
from traced_tools.core.tool_context import ToolContext
from traced_tools.core.tool_definition import ToolCallback, ToolCallbackResolver, ToolMetadata
from traced_tools.core.tool_errors import ANSWER_ERRORS, ToolErrors
from traced_tools.core.tool_input import Provide
from traced_tools.durable_run import DurableRun, check_key, check_priority, drive_run, durable_store
from traced_tools.errors import (
    AdvisorChainError,
    LoopLimitExceeded,
    ResumeError,
    TracedToolsError,
)
from traced_tools.flow.event_loops import warn_if_blocking_loop
from traced_tools.flow.flow import acall, call
from traced_tools.flow.steps import ParallelFlows
from traced_tools.loop.advisor import Advisor, ToolLoopAdvisor, TranscriptAdvisor
from traced_tools.loop.chain import AdvisorChain
from traced_tools.loop.exchange import OutputT
from traced_tools.loop.paused_runs import KeepsPausedRuns, Question, RunLife
from traced_tools.loop.tool_calling import ToolCallingAdvisor
from traced_tools.models.base import ChatModel
from traced_tools.observe.failures import error_type
from traced_tools.observe.run_attributes import check_attributes, merge_attributes
from traced_tools.observe.run_telemetry import TelemetryOptions
from traced_tools.request_spec import ChatClientRequestSpec as ChatClientRequestSpec
from traced_tools.request_spec import copy_containers, instructions_of, record_refusal
from traced_tools.run.context import RunContext, current_run
from traced_tools.tools.approval import check_scope
from traced_tools.tools.flow_tool import AgentToolCallback, check_nested
from traced_tools.tools.selection import ToolSelection

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

    from traced_tools.loop.state import RunState


UserContent = str | UserMessage | Sequence[TextPart | ImagePart]
_ANSWERS: Final = ("answered", "return_direct", "advisor")
"""The stop reasons of runs that no limit has ended."""
_NO_OUTPUT: Final[Any] = None
"""The default of `output=`; of type Any, because None itself is a type form."""


class ChatClient:
    """Sends prompts to a model and runs the tools that the model calls, through a chain of advisors.

    A client is immutable and safe to share between threads and tasks. `copy.deepcopy` returns the client itself.

    Args:
        model: the model that answers the requests.
        name: the agent's name in telemetry. It is a metric label, so use a fixed name, not one made from user input.
        version: the version of the agent in telemetry, such as that of its prompt; at most 64 printable characters. It
            is a metric label. By default, it is a digest of `system`, the tools and the policies.
        agent_id: the stable id by which a registry, a catalogue or a cloud knows the agent, of 1 to 128 printable
            characters. It is on the spans of runs and the events of their ends, and is never a metric label. Don't make
            one per process.
        system: the instructions of every request.
        tools: the tools of requests that set no tools themselves.
        advisors: the advisors of every request.
        options: the model's options, such as the temperature. Options of a request override them.
        tool_context: data about the caller for tools; never sent to the model. The data of a request is merged into it
            by key: the request's value replaces the client's.
        tool_calling: False runs no tool loop, for requests that do not say otherwise; see `prompt`.
        tool_calling_advisor: the tool loop to use instead of a default `ToolCallingAdvisor`.
        limits: the limits of each run, such as iterations, tool calls and time.
        tool_errors: the error policy: what happens when a tool fails.
        resolver: finds tools by the names in `tools`.
        resolver_fallback: whether to ask the resolver for a tool that the model calls and the request does not contain.
        telemetry: which telemetry to emit, and to which providers.
        attributes: attributes of every run, such as a team. Attributes of a request are merged into them.
        principal: on whose behalf the runs of requests are that name no principal, such as the id of a service. A run
            that is nested in another one has the principal of the enclosing run instead, if that run has one.
        approval_key: signs the states of runs that wait for approval, at least 16 bytes. Of several keys, the first one
            signs, and states with a signature of any are accepted. By default, the value of the variable
            `TRACED_TOOLS_STATE_KEY`, in which commas separate several keys; without it, states are not signed.
        pending_store: keeps the runs that wait for approval, such as a `PendingStore`. A state then works once.

    Raises:
        TypeError, ValueError: for an invalid argument. The message names the argument and what it accepts.
        AdvisorChainError: if the advisors cannot form a chain.
        ToolDefinitionError: if an item of `tools` is not a tool, or two tools have the same name.
        ToolNotFoundError: if the resolver does not know a name in `tools`.

    """

    def __init__(
        self,
        model: ChatModel,
        *,
        name: str = "assistant",
        version: str | None = None,
        agent_id: str | None = None,
        system: str | None = None,
        tools: object = (),
        advisors: Iterable[Advisor] = (),
        options: ChatOptions | None = None,
        tool_context: Mapping[str, Any] | None = None,
        tool_calling: bool = True,
        tool_calling_advisor: ToolCallingAdvisor | None = None,
        limits: LoopLimits | None = None,
        tool_errors: ToolErrors | None = None,
        resolver: ToolCallbackResolver | None = None,
        resolver_fallback: bool = False,
        telemetry: TelemetryOptions | None = None,
        attributes: Mapping[str, AttributeValue] | None = None,
        principal: str | None = None,
        approval_key: bytes | str | Sequence[bytes | str] | None = None,
        pending_store: KeepsPausedRuns | None = None,
    ) -> None:
        check_resolver(resolver, resolver_fallback)  # before the selection, which calls it for names
        self._tools = ToolSelection(tools, resolver)
        self._settings = ClientSettings(
            model=model,
            name=name,
            version=version,
            agent_id=agent_id,
            system=system,
            tools=self._tools,
            advisors=checked_advisors(advisors),
            options=options,
            tool_context=checked_mapping("tool_context", tool_context),
            tool_calling=tool_calling,
            tool_calling_advisor=tool_calling_advisor,
            limits=limits,
            tool_errors=tool_errors,
            resolver=resolver,
            resolver_fallback=resolver_fallback,
            telemetry=telemetry,
            attributes=check_attributes(attributes),
            principal=principal,
            approval_key=approval_key,
            pending_store=pending_store,
        )
        self._state_keys = StateKey.configured(approval_key)
        self._chain = self._make_chain((), tool_calling=tool_calling)

    @property
    def name(self) -> str:
        """The agent's name in telemetry."""
        return self._settings.name

    @property
    def pending_store(self) -> KeepsPausedRuns | None:
        """What keeps the runs that wait and the durable runs; None if nothing does."""
        return self._settings.pending_store

    def replace(self, **changes: Any) -> ChatClient:
        """Return a new client with this client's arguments, except for those in `changes`."""
        arguments = {item.name: getattr(self._settings, item.name) for item in fields(self._settings)}
        return ChatClient(**{**arguments, **changes})

    def prompt(
        self,
        user: UserContent | None = None,
        *,
        messages: Iterable[Message] = (),
        system: str | None = None,
        conversation_id: str | None = None,
        principal: str | None = None,
        output: TypeForm[OutputT] = _NO_OUTPUT,
        tool_calling: bool | None = None,
        attributes: Mapping[str, AttributeValue] | None = None,
        **settings: Unpack[RequestSettings],
    ) -> ChatClientRequestSpec[OutputT]:
        """Assemble a request. To send it, call its `call`, `acall`, `stream`, `astream` or `start`.

        Args:
            user: the user's message, as text, parts or a `UserMessage`; not blank.
            messages: the conversation so far. It is sent after `system` and before `user`. If it already begins with
                `system`, that message is not sent twice. A tool call without a result gets one that says that its
                outcome is unknown, because only you know whether it ran.
            system: the instructions, instead of the client's; not blank.
            conversation_id: identifies the conversation in telemetry and for memories. A `MemoryAdvisor` reads and
                keeps the conversation with this id. Without a memory, nothing is remembered.
            principal: on whose behalf the run is, such as the id of a user: a text of 1 to 256 characters, not blank.
                Standing approvals and cached results are for one principal, and a memory refuses a conversation that
                belongs to another one. The audit trail and telemetry record who asked. Without a principal, the run
                has that of the enclosing run, else that of the client.
            output: the type of the answer, any type that pydantic can validate, such as a model, a dataclass or
                `list[int]`. `response.output` is then the answer as a value of this type; see
                `StructuredOutputAdvisor`, which is added to the request's advisors.
            tool_calling: whether to run the tool loop, instead of what the client does. Without it, the response may
                contain tool calls for the caller to run.
            attributes: attributes of the run, such as its user and tenant, merged into the client's. They are recorded
                on the run's span, events and audit records whether or not content is captured, and are never metric
                labels. Nested runs inherit them. Up to 32 keys of up to 64 letters, digits, `.`, `_` and `-`. A value
                is a str (up to 256 characters), bool, int, float, or a sequence of up to 32 values of one such type.
            **settings: `tools`, `advisors`, `options`, `tool_context`, `limits`, `tool_errors` and `params`; see
                `RequestSettings`.

        Raises:
            TypeError, ValueError: for an invalid argument. The message names the argument and what it accepts.
            AdvisorChainError: if the advisors cannot form a chain.
            ToolNotFoundError: if the resolver does not know a name in `tools`.
        """
        check_request("prompt", settings, system)
        expect("conversation_id", conversation_id, (str, type(None)), "a str or None")
        check_principal("principal", principal)
        expect("tool_calling", tool_calling, (bool, type(None)), "True, False or None")
        conversation = _conversation(self._settings.system if system is None else system, messages, user)
        return self._request(
            conversation,
            conversation_id,
            {"principal": principal, "default_principal": self._settings.principal},
            output=output,
            tool_calling=self._settings.tool_calling if tool_calling is None else tool_calling,
            attributes=attributes,
            **settings,
        )

    def resume(
        self,
        state: str,
        decisions: Mapping[str, CallDecision] | None = None,
        *,
        output: TypeForm[OutputT] = _NO_OUTPUT,
        **settings: Unpack[RequestSettings],
    ) -> ChatClientRequestSpec[OutputT]:
        """Assemble a request that resumes a run that waits for approval or input, in this process or another one.

        The calls that were decided run or are refused. The run then goes on with their results. A call without a
        decision keeps waiting. The conversation, the principal and the actors, the attributes, and what the run has
        used of its limits are those of the state.

        Args:
            state: `response.state` of the run that waits.
            decisions: the decisions by the call's id, such as `{"call_1": Approve(by="ana")}`; for a call that waits
                for input, such as `{"call_2": Provide({"size": {"centimetres": 40}})}`. With a `pending_store`,
                decisions in the store count as well.
            output: as in `prompt`.
            **settings: as in `prompt`. Pass the `tools`, `advisors` and `tool_context` that you passed there, because a
                state holds neither code nor the context of tools.

        Raises:
            ResumeError: if the state was altered, or is of another version, or if a call does not wait for such a
                decision. When the request runs, also if the state is spent, a tool is gone or has changed, or the
                conversation went on. Nothing has run then.
            TypeError, ValueError: for an invalid argument.
        """
        from traced_tools.loop.state import RunState  # few runs pause

        check_request("resume", settings)
        expect("state", state, str, "a str: the `state` of a response")
        expect("decisions", decisions, (Mapping, type(None)), "a mapping of ids of calls to Approve, Reject or Provide")
        decisions = dict(decisions or {})
        expect_each("the keys of decisions", [*decisions], str, "a str: the id of a call")
        for call_id, decision in decisions.items():
            expect(f"decisions[{call_id!r}]", decision, (Approve, Reject, Provide), "an Approve, a Reject or a Provide")
            check_scope(decision)
        try:
            paused = RunState.from_text(state, self._state_keys)
        except ResumeError as error:
            if (store := self._settings.pending_store) is not None and error.lasting is not None:
                call(record_refusal(store, state, error.lasting))
            raise
        paused.check_decisions(decisions)
        if paused.is_kept and self._settings.pending_store is None:
            raise ResumeError("a store keeps the state, so that it works once: pass the store as pending_store=")
        return replace(self._resume_request(paused, decisions, output=output, **settings), resumed_text=state)

    def submit(
        self, user: UserContent | None = None, *, key: str, priority: int = 0, **question: Unpack[QuestionSettings]
    ) -> None:
        """Keep a run that outlives this process, blocking; nothing happens in it before `drive`.

        If the store has this run already, nothing changes, so a request that is repeated begins one run.

        Args:
            user: the user's message, as in `prompt`.
            key: identifies the run: 1 to 200 printable characters. It is on the run's spans, events and audit records.
            priority: `Workers` begin the runs of a higher priority first, from -1,000,000 to 1,000,000.
            **question: `messages`, `system`, `conversation_id`, `principal` and `attributes`, as in `prompt`.

        Raises:
            ConfigurationError: if the client has no `pending_store` that keeps durable runs.
            KeyInUse: if a run with the key is of another agent, principal or conversation, or has another question.
            PendingStoreError: if the store fails.
            QueueFull: if too many runs of the principal wait for their first life; see `PendingStore`.
            TypeError, ValueError: for an invalid argument.
        """
        call(self._submit(user, key, priority, question))

    async def asubmit(
        self, user: UserContent | None = None, *, key: str, priority: int = 0, **question: Unpack[QuestionSettings]
    ) -> None:
        """Keep a run that outlives this process, on asyncio; see `submit`."""
        await acall(self._submit(user, key, priority, question))

    async def _submit(self, user: UserContent | None, key: str, priority: int, question: QuestionSettings) -> None:
        check_key(key)
        check_priority(priority)
        check_names("submit", question, QuestionSettings)
        store, spec = durable_store(self._settings.pending_store), self.prompt(user, **question)
        principal = question.get("principal")
        new_question = Question(
            spec.messages,
            question.get("conversation_id"),
            self._settings.principal if principal is None else principal,
            check_attributes(question.get("attributes")),
        )
        await store.submit(key, self.name, new_question, self._state_keys, priority)

    def drive(
        self, key: str, *, output: TypeForm[OutputT] = _NO_OUTPUT, **settings: Unpack[RequestSettings]
    ) -> DurableRun[OutputT]:
        """Drive a submitted run to its end or its next wait, blocking, in any process and any number of times.

        What a process before has recorded is not done again. A tool that had begun without a recorded result runs again
        only if its annotations say `idempotent` or `read_only`; otherwise, the model reads that its outcome is unknown.
        If the calls that a run waits for are not decided yet, nothing happens.

        Args:
            key: the key of the run.
            output: as in `prompt`.
            **settings: as in `prompt`; a log holds neither code nor the context of tools.

        Raises:
            RunTaken: if another process drives the run meanwhile, and this one has stopped.
            UnknownRun: if no run of this client has the key.
            ResumeError: if the log was altered, a tool is gone or has changed, or the conversation went on.
            ModelError: if the model fails, as in `call`. The run is then interrupted and can be driven again.
        """
        warn_if_blocking_loop("drive", "adrive")
        return call(self._drive(key, output, settings))

    async def adrive(
        self, key: str, *, output: TypeForm[OutputT] = _NO_OUTPUT, **settings: Unpack[RequestSettings]
    ) -> DurableRun[OutputT]:
        """Drive a submitted run to its end or its next wait, on asyncio; see `drive`."""
        return await acall(self._drive(key, output, settings))

    async def _drive(self, key: str, output: TypeForm[OutputT], settings: RequestSettings) -> DurableRun[OutputT]:
        check_key(key)
        check_request("drive", settings)
        opened = await durable_store(self._settings.pending_store).open_run(key, self.name, self._state_keys)

        def request_of(life: RunLife) -> ChatClientRequestSpec[OutputT]:
            if life.state is not None:
                return self._resume_request(life.state, {}, output=output, **settings)
            question = life.question
            identity = {"principal": question.principal}
            return self._request(
                question.messages,
                question.conversation_id,
                identity,
                output=output,
                tool_calling=True,
                attributes=question.attributes,
                **settings,
            )

        return await drive_run(key, opened, request_of)

    def as_tool(self, name: str, description: str, *, metadata: ToolMetadata | None = None) -> ToolCallback:
        """Return a tool that asks this agent a question, for another agent.

        The agent has the `tool_context` and the principal of the run that asks, and its conversation if a memory keeps
        it: the agent then has a branch of the conversation. If the agent's run waits for approval or input, the run
        that asks waits as well: its `response.pending` has the calls of the agent, and resuming it with the decisions
        resumes the agent's run. If a limit ends the agent's run without any text, the call of the tool fails with
        `LoopLimitExceeded`.

        Args:
            name: the name of the tool that the model uses.
            description: what the agent is for, which the model reads.
            metadata: the settings of the tool for the loop.

        Raises:
            ToolDefinitionError: if no provider accepts the name.
        """

        async def answer(spec: ChatClientRequestSpec[Any]) -> str:
            # `ParallelFlows` runs the agent in a separate context, so that its run isn't the current one afterwards
            [response] = await ParallelFlows([replace(spec, pending_store=None).begin()])
            if not response.content and not response.pending and response.stop_reason not in _ANSWERS:
                raise LoopLimitExceeded(response.stop_reason, response)
            return response.content

        async def ask(question: str, context: ToolContext) -> str:
            # without a memory around it, the agent would write as if the user had asked it
            asking = current_run()
            is_kept = asking is not None and asking.remembered is not None
            conversation = context.conversation_id if is_kept else None
            spec = self.prompt(question, conversation_id=conversation, tool_context=dict(context))
            if is_kept:  # a conversation without an owner must not get the client's principal as its owner
                spec = replace(spec, new_run=partial(spec.new_run, default_principal=None))
            return await answer(spec)

        async def resume(pause: DecidedPause, context: ToolContext) -> str:
            from traced_tools.loop.state import RunState

            assert isinstance(pause.run, RunState)
            return await answer(self._resume_request(pause.run, pause.decisions, tool_context=dict(context)))

        async def check(state: WaitingRun) -> None:
            from traced_tools.loop.state import RunState

            assert isinstance(state, RunState)
            self._resume_request(state, {})
            tools = (await self._tools.tool_set()).by_name
            state.check_tools(tools)
            await check_nested(state.nested_runs(), tools)

        return AgentToolCallback(ask, resume, check, name=name, description=description, metadata=metadata)

    def _resume_request(
        self,
        state: RunState,
        decisions: Mapping[str, CallDecision | Denied],
        *,
        output: TypeForm[OutputT] = _NO_OUTPUT,
        **settings: Unpack[RequestSettings],
    ) -> ChatClientRequestSpec[OutputT]:
        """Return the request that resumes a run from a state; raises `ResumeError` if it is of another agent."""
        if state.agent != self.name:
            raise ResumeError(
                f"the state is of the agent {state.agent!r}, and this client is {self.name!r}: "
                "resume it with the client that has its name"
            )
        spec = self._request(
            state.request,
            state.conversation_id,
            {"principal": state.principal, "actors": state.actors},
            output=output,
            tool_calling=True,
            attributes=state.attributes,
            **settings,
        )
        if state.is_logged and not spec.chain.transcripts:
            raise ResumeError(
                "the memory inside the loop keeps the run, so that it works once: "
                "resume with the MemoryAdvisor that the run was paused with"
            )
        return replace(spec, resumed=(state, decisions))

    def check(self) -> list[CheckedPart]:
        """Check what requests depend on, blocking, for example when an application starts; this spends no tokens.

        Each part that can be checked is an item of the result: the model answers a request that is free, the audit
        trail and the pending store can be written, the memory can be read, and MCP servers list their tools. Models,
        advisors, providers of tools and stores of your own take part if they have a method `checks`.

        Missing tables and files are created, as the first run would.
        """
        return call(self._check_parts())

    async def acheck(self) -> list[CheckedPart]:
        """Check what requests depend on, on asyncio; see `check`."""
        return await acall(self._check_parts())

    async def _check_parts(self) -> list[CheckedPart]:
        settings = self._settings
        parts: Sequence[Any] = (settings.model, *settings.advisors, *self._tools.providers, settings.pending_store)
        return [await _run_check(check) for part in parts if isinstance(part, Checkable) for check in part.checks()]

    def _request(
        self,
        messages: tuple[Message, ...],
        conversation_id: str | None,
        identity: Mapping[str, Any],
        *,
        output: TypeForm[OutputT],
        tool_calling: bool,
        attributes: Mapping[str, AttributeValue] | None,
        **settings: Unpack[RequestSettings],
    ) -> ChatClientRequestSpec[OutputT]:
        """Return a request with the settings of `prompt` in place of the client's.

        `identity` has the arguments of `RunContext` about the principal and the actors.
        """
        own, tools = self._settings, settings.get("tools")
        params = checked_mapping("params", settings.get("params"))
        chain = self._request_chain(checked_advisors(settings.get("advisors", ())), output, tool_calling=tool_calling)
        completed = with_results(messages)
        return ChatClientRequestSpec(
            chain=chain,
            messages=completed,
            unanswered=0 if completed is messages else len(open_calls(messages)),
            has_own_agent=tools is None and instructions_of(messages) == (own.system or ""),
            tools=self._tools if tools is None else ToolSelection(tools, own.resolver),
            options=(own.options or NO_OPTIONS).merged(settings.get("options")),
            context=copy_containers(params) if params else params,
            state_key=self._state_keys[0] if self._state_keys else None,
            pending_store=own.pending_store,
            new_run=partial(
                RunContext,
                agent=own.name,
                version=own.version,
                agent_id=own.agent_id,
                conversation_id=conversation_id,
                **identity,
                tool_context={**own.tool_context, **checked_mapping("tool_context", settings.get("tool_context"))},
                limits=settings.get("limits") or own.limits or DEFAULT_LIMITS,
                tool_errors=settings.get("tool_errors") or own.tool_errors or ANSWER_ERRORS,
                telemetry=own.telemetry,
                tool_advisors=chain.tool_advisors,
                approvers=chain.approvers,
                listeners=chain.listeners,
                resolver_fallback=own.resolver if own.resolver_fallback else None,
                enforces_schema=own.model.enforces_schema,
                transcripts=chain.transcripts,
                context_window=own.model.known_context_window,
                attributes=merge_attributes(own.attributes, check_attributes(attributes)),
            ),
        )

    def _request_chain(self, extra: tuple[Advisor, ...], output: object, *, tool_calling: bool) -> AdvisorChain:
        """Return the chain of a request: the client's own, unless the request adds advisors or switches the loop."""
        if output is not None:
            from traced_tools.advisors.structured_output import StructuredOutputAdvisor

            if any(isinstance(advisor, StructuredOutputAdvisor) for advisor in (*self._settings.advisors, *extra)):
                raise AdvisorChainError("pass either output= or a StructuredOutputAdvisor in advisors=, not both")
            extra = (*extra, StructuredOutputAdvisor(output))
        if tool_calling is self._settings.tool_calling and not extra:
            return self._chain
        return self._make_chain(extra, tool_calling=tool_calling)

    def _make_chain(self, extra: Sequence[Advisor], *, tool_calling: bool) -> AdvisorChain:
        """Return the chain of this client's advisors and the `extra` ones.

        With `tool_calling`, a tool loop is added if the advisors contain none. Without it, tool loops are removed.
        """
        advisors = [*self._settings.advisors, *extra]
        if tool_calling and not any(isinstance(advisor, ToolLoopAdvisor) for advisor in advisors):
            advisors.append(_choose_loop(self._settings.tool_calling_advisor or ToolCallingAdvisor(), advisors))
        if not tool_calling:
            advisors = [advisor for advisor in advisors if not isinstance(advisor, ToolLoopAdvisor)]
        return AdvisorChain(advisors, self._settings.model)

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __repr__(self) -> str:
        return f"<ChatClient {self.name!r}: {len(self._tools)} tools, {len(self._settings.advisors)} advisors>"


async def _run_check(check: PartCheck) -> CheckedPart:
    try:
        await check.run()
    except TracedToolsError as error:
        return CheckedPart(check.part, str(error))
    except Exception as error:  # whose text may hold contents
        return CheckedPart(check.part, error_type(error))
    return CheckedPart(check.part)


def _choose_loop(loop: ToolCallingAdvisor, advisors: Iterable[Advisor]) -> ToolCallingAdvisor:
    """Return `loop`, or a copy that keeps no history if an advisor inside the loop keeps the transcript."""
    if any(isinstance(advisor, TranscriptAdvisor) and advisor.order > loop.order for advisor in advisors):
        loop = copy.copy(loop)
        loop.keep_history = False
    return loop


def _conversation(system: str | None, messages: Iterable[Message], user: UserContent | None) -> tuple[Message, ...]:
    expect("messages", messages, Iterable, "a sequence of messages")
    middle = tuple(messages)
    expect_each("messages", middle, MESSAGE_TYPES, ANY_MESSAGE)
    # a continued conversation already begins with the system message it was sent with
    for index, message in enumerate(middle):
        check_not_blank(f"messages[{index}]", message)
    instructions = () if system is None or middle[:1] == (SystemMessage(system),) else (SystemMessage(system),)
    conversation = (*instructions, *middle, *(() if user is None else (_user_message(user),)))
    if not conversation:
        raise ValueError("prompt needs something to send: pass user=, messages= or system=")
    return conversation


def _user_message(user: UserContent) -> UserMessage:
    if not isinstance(user, UserMessage):
        expect("user", user, (str, list, tuple), "a str, a UserMessage, or a list of TextPart and ImagePart")
        if not isinstance(user, str):
            expect_each("user", user, (TextPart, ImagePart), "a TextPart or an ImagePart")
        user = UserMessage(user)
    check_not_blank("user", user)
    return user
