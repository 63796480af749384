"""The state of a run that waits for approval or input, as text with which another process resumes it.

The text is a JSON object with `traced_tools_state` (the version of the format), `state`, and `digest`. The digest is
over the canonical form of `state`: sorted keys and no blanks. Without a key it is SHA-256, which detects an accident.
With a key it is HMAC-SHA-256, which cannot be forged without the key.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple, Self

from pydantic import AfterValidator, Field, PlainSerializer, ValidationError, ValidationInfo

from traced_tools.core.approval import Approve, CallDecision, Denied, NestedPause, PendingCall, WaitingRun, nested_id
from traced_tools.core.enums import LOCAL, Decision, PolicyDecision, ToolOutcome
from traced_tools.core.escaping import escaped, unescaped
from traced_tools.core.ids import time_ordered_id
from traced_tools.core.messages import AssistantMessage, ImagePart, Message, Usage, UsageSum, Value, tool_message_of
from traced_tools.core.policy_verdict import PolicyVerdict
from traced_tools.core.state_key import StateKey
from traced_tools.core.tool_definition import ToolCallback, ToolDefinition, definition_digest
from traced_tools.core.tool_input import InputMethod, InputRequest, PendingInput
from traced_tools.core.tool_result import ToolExecutionResult, ToolResult
from traced_tools.core.totals import NestedUsage
from traced_tools.errors import ResumeError
from traced_tools.run.context import RunContext
from traced_tools.run.resumption import RunPause
from traced_tools.tools.approval import check_decision, check_unchanged

STATE_VERSION: Final = 1
_SIGNED: Final = "hmac-sha256"
_Message = Annotated[Message, Field(discriminator="role")]
Messages = Annotated[tuple[_Message, ...], Field(repr=False)]
"""Messages, which a `repr` doesn't show."""


def _read_text(text: str, info: ValidationInfo) -> str:
    return unescaped(text) if info.mode == "json" else text


AnyText = Annotated[str, PlainSerializer(escaped, when_used="json"), AfterValidator(_read_text)]
"""A text that a model or an application wrote, which may have lone surrogates; in a state, they are escaped."""


class KeptResult(Value):
    """The result of a call that ran, or was refused, before its run paused."""

    call_id: AnyText
    name: AnyText = Field(repr=False)
    content: AnyText = Field(repr=False)
    images: tuple[ImagePart, ...] = Field(default=(), repr=False)
    cut: bool = False
    decision: Decision
    outcome: ToolOutcome | None = None
    error_type: AnyText | None = None
    advisor: AnyText | None = None
    reason_code: AnyText | None = None
    edited: AnyText | None = Field(default=None, repr=False)
    rule: AnyText | None = None
    by: AnyText | None = Field(default=None, repr=False)

    @classmethod
    def of(cls, result: ToolResult) -> Self:
        """Return a result as a state keeps it: without the value that the tool returned, and without its exception."""
        values = {field: getattr(result, field) for field in cls.model_fields if field != "name"}
        return cls(name=result.tool, **values)

    def result(self) -> ToolResult:
        """Return the result."""
        values = {field: getattr(self, field) for field in type(self).model_fields if field != "name"}
        return ToolResult(tool=self.name, **values)


def _check_object(text: str) -> str:
    if not isinstance(json.loads(text), dict):
        raise ValueError("must be a JSON object")
    return text


class KeptQuestion(Value):
    """A question of a tool; see `InputRequest`. The parameters are JSON text, whatever characters they contain."""

    key: AnyText = Field(repr=False)
    method: InputMethod
    params: Annotated[str, AfterValidator(_check_object)] = Field(repr=False)

    @classmethod
    def of(cls, question: InputRequest) -> Self:
        """Return a question as a state keeps it."""
        return cls(key=question.key, method=question.method, params=json.dumps({**question.params}))

    def question(self) -> InputRequest:
        """Return the question."""
        return InputRequest(key=self.key, method=self.method, params=json.loads(self.params))


class KeptInput(Value):
    """What a tool asks for; see `PendingInput`."""

    requests: tuple[KeptQuestion, ...] = Field(min_length=1)
    state: AnyText | None = Field(default=None, repr=False)
    round: int = Field(ge=1)
    answers: Annotated[str, AfterValidator(_check_object)] = Field(default="{}", repr=False)

    @classmethod
    def of(cls, pending: PendingInput) -> Self:
        """Return the questions as a state keeps them."""
        return cls(
            requests=tuple(map(KeptQuestion.of, pending.requests)),
            state=pending.state,
            round=pending.round,
            answers=json.dumps({**pending.answers}),
        )

    def pending(self) -> PendingInput:
        """Return the questions."""
        questions = tuple(request.question() for request in self.requests)
        answers = json.loads(self.answers)
        return PendingInput(requests=questions, state=self.state, round=self.round, answers=answers)


class KeptApproval(Value):
    """The approval of a call that waits for input."""

    by: AnyText | None = Field(default=None, repr=False)
    code: AnyText | None = None


class KeptVerdict(Value):
    """The verdict of the policy that a call waits under; see `PolicyVerdict`."""

    advisor: AnyText
    decision: PolicyDecision
    reason_code: AnyText
    policy_digest: AnyText
    rule: AnyText | None = None

    @classmethod
    def of(cls, verdict: PolicyVerdict) -> Self:
        """Return the verdict as a state keeps it."""
        return cls(**{name: getattr(verdict, name) for name in cls.model_fields})

    def verdict(self) -> PolicyVerdict:
        """Return the verdict."""
        return PolicyVerdict(self.advisor, self.decision, self.reason_code, self.policy_digest, self.rule)


class WaitingCall(Value):
    """A call that waits, bound to its arguments, and to the definition and the source of its tool.

    Attributes:
        call_id, tool, arguments, bound, source, reason, rule, policy_rule, intent, requested_at, held: as in
            `PendingCall`.
        arguments_digest: SHA-256 of `arguments` in hex.
        definition_digest: SHA-256 of the tool's definition in hex, as the audit trail has it.
        policy: the verdict of the policy that the call waits under; None if no policy decides.
        input: what the tool asks for; None for a call that waits for approval, or is held.
        approval: the approval of a call whose tool has begun and waits; None if it needed none.
        nested: the state of the run that the tool has begun and that waits; None if it has not.
    """

    call_id: AnyText
    tool: AnyText
    arguments: AnyText = Field(repr=False)
    bound: AnyText | None = Field(default=None, repr=False)
    arguments_digest: str
    definition_digest: str
    source: AnyText = LOCAL
    reason: AnyText | None = Field(default=None, repr=False)
    rule: AnyText | None = None
    policy_rule: AnyText | None = None
    policy: KeptVerdict | None = None
    intent: AnyText | None = Field(default=None, repr=False)
    requested_at: float
    held: bool = False
    input: KeptInput | None = None
    approval: KeptApproval | None = None
    nested: RunState | None = None

    @classmethod
    def of(cls, call: PendingCall) -> Self:
        """Return the call with its digests."""
        nested = None if call.nested is None else call.nested.run
        assert nested is None or isinstance(nested, RunState)
        approval = None if call.approval is None else KeptApproval(by=call.approval.by, code=call.approval.code)
        return cls(
            **{name: getattr(call, name) for name in cls._shared_fields()},
            arguments_digest=text_digest(call.arguments),
            definition_digest=definition_digest(call.definition),
            policy=None if call.policy is None else KeptVerdict.of(call.policy),
            input=None if call.input is None else KeptInput.of(call.input),
            approval=approval,
            nested=nested,
        )

    def pending(self, definition: ToolDefinition) -> PendingCall:
        """Return the call with the definition of its tool."""
        approval = None if self.approval is None else Approve(by=self.approval.by, code=self.approval.code)
        return PendingCall(
            **{name: getattr(self, name) for name in self._shared_fields()},
            definition=definition,
            policy=None if self.policy is None else self.policy.verdict(),
            input=None if self.input is None else self.input.pending(),
            approval=approval,
            nested=None if self.nested is None else NestedPause(self.nested, ()),
        )

    def leaves(self) -> Iterator[WaitingLeaf]:
        """Yield the calls to decide about: this one, or those of the nested run that it waits for."""
        if self.nested is None:
            yield WaitingLeaf(self.call_id, (), self)
            return
        for waiting in self.nested.waiting:
            for call_id, path, call in waiting.leaves():
                yield WaitingLeaf(nested_id(self.call_id, call_id), (self.tool, *path), call)

    def check_decision(self, decision: CallDecision | Denied) -> None:
        """Raise `ResumeError` if the call does not wait for a decision of this kind."""
        check_decision(self.call_id, None if self.input is None else self.input.pending().requests, decision)

    @classmethod
    def _shared_fields(cls) -> list[str]:
        own = ("arguments_digest", "definition_digest", "policy", "input", "approval", "nested")
        return [name for name in cls.model_fields if name not in own]


class WaitingLeaf(NamedTuple):
    """A call to decide about, of a run that waits or of a run nested in it.

    Attributes:
        call_id: its id among all of them.
        path: the tools through which its agent was asked, the outermost first.
        call: the call.
    """

    call_id: str
    path: tuple[str, ...]
    call: WaitingCall


class KeptByAdvisor(Value):
    """What an advisor keeps of a run that pauses; see `Advisor.paused_state`.

    Attributes:
        name: the name of the advisor.
        place: its place among the advisors of that name, from 0, the outermost first.
        state: a JSON object as text, whatever characters it contains.
    """

    name: AnyText
    place: int = Field(default=0, ge=0)
    state: Annotated[str, AfterValidator(_check_object)] = Field(repr=False)


class RunState(Value):
    """The state of a run that waits, or that was interrupted: where another run goes on.

    The text of a state is always that of a run that waits: each call of the answer has a result or waits. The log of a
    run that was interrupted gives a state whose calls may have neither, and which may have no answer yet.

    Attributes:
        id: identifies the state.
        run_ids: the ids of the run and of the runs that it resumed, the first one first.
        traceparent: the W3C trace context of the run; None if it was not traced.
        agent: the name of the client.
        conversation_id, principal, actors, attributes: those of the run.
        request: the messages of the request, without what a memory adds.
        added: what the loop added to its request before the answer.
        answer: the answer with the calls; None if the run was interrupted before its first answer with calls.
        results: the results of the other calls of the answer.
        waiting: the calls that wait.
        cut: the ids of the calls whose tools had begun when the run was interrupted.
        unsent: the ids of the calls with results that the conversation does not have.
        iteration: the iteration of the answer; 0 if there is none.
        usage: what the run and the runs before have used, without the runs nested in them.
        nested: what the runs nested in them have used.
        seconds: how long they took.
        is_kept: whether a store keeps the state, so that it can be resumed once, with the store.
        is_logged: whether no store keeps the state, but a memory inside the loop keeps the conversation, so that it can
            be resumed once, with the memory.
        discovered_tools: the names of the tools that a tool search has found for the model, in the order of discovery.
        advisors: what the advisors keep, in the order of the chain.
    """

    id: str = Field(default_factory=time_ordered_id)
    run_ids: tuple[str, ...] = Field(min_length=1)
    traceparent: str | None = None
    agent: AnyText
    conversation_id: AnyText | None = None
    principal: AnyText | None = Field(default=None, repr=False)
    actors: tuple[AnyText, ...] = ()
    attributes: dict[str, Any] = Field(default_factory=dict, repr=False)
    request: Messages
    added: Messages
    answer: AssistantMessage | None = Field(repr=False)
    results: tuple[KeptResult, ...] = ()
    waiting: tuple[WaitingCall, ...] = ()
    cut: tuple[AnyText, ...] = Field(default=(), exclude=True)
    unsent: tuple[AnyText, ...] = Field(default=(), exclude=True)
    iteration: int = Field(ge=0)
    usage: Usage | None = None
    nested: NestedUsage | None = None
    seconds: float = Field(ge=0, allow_inf_nan=False)
    is_kept: bool = False
    is_logged: bool = False
    discovered_tools: tuple[str, ...] = Field(default=(), repr=False)
    advisors: tuple[KeptByAdvisor, ...] = ()

    @classmethod
    def of(
        cls,
        run: RunContext,
        pause: RunPause,
        request: tuple[Message, ...],
        traceparent: str | None = None,
        *,
        is_kept: bool = False,
        advisors: Sequence[KeptByAdvisor] = (),
    ) -> Self:
        """Return the state of a run that has paused."""
        paused, usage = None if run.resumption is None else run.resumption.paused, UsageSum()
        usage.add(None if paused is None else paused.usage)
        usage.add(run.totals.usage.total)
        return cls(
            run_ids=(*(() if paused is None else paused.run_ids), run.id),
            traceparent=traceparent,
            agent=run.agent,
            conversation_id=run.conversation_id,
            principal=run.principal,
            actors=run.actors,
            attributes=dict(run.attributes),
            request=request,
            added=pause.added,
            answer=pause.answer,
            results=tuple(KeptResult.of(result) for result in pause.result.results if result.pending is None),
            waiting=tuple(map(WaitingCall.of, pause.result.waiting)),
            iteration=pause.iteration,
            usage=usage.total,
            nested=run.totals.nested_usage(),
            seconds=run.tally.seconds(),
            is_kept=is_kept,
            is_logged=not is_kept and run.conversation_id is not None and bool(run.transcripts),
            discovered_tools=run.discovered_tools,
            advisors=tuple(advisors),
        )

    def to_text(self, key: StateKey | None) -> str:
        """Return the text of the state."""
        state = self.model_dump(mode="json")
        return json.dumps({"traced_tools_state": STATE_VERSION, "state": state, "digest": _digest(state, key)})

    @classmethod
    def from_text(cls, text: str, keys: Sequence[StateKey] = ()) -> Self:
        """Return the state in a text.

        Args:
            text: the text.
            keys: the keys of which one must have signed it; none if states are not signed.

        Raises:
            ResumeError: if the text is not a state, is of another version, or was altered.
        """
        state, digest = _parse(text)
        signed_with = (key for key in keys if digest.startswith(f"{_SIGNED}:{key.id}:"))
        expected = _digest(state, next(signed_with, keys[0] if keys else None))
        # bytes, because `compare_digest` refuses a str that is not ASCII, and a forged digest may have any characters
        if not hmac.compare_digest(digest.encode("utf-8", "surrogatepass"), expected.encode()):
            raise _refusal(digest, expected)
        return cls._validate(state)

    @classmethod
    def unverified(cls, text: str) -> Self:
        """Return the state in a text, which may have been altered; raises `ResumeError` as `from_text` does."""
        return cls._validate(_parse(text)[0])

    @classmethod
    def _validate(cls, state: object) -> Self:
        try:  # as JSON, because `AnyText` is escaped only in JSON
            run_state = cls.model_validate_json(json.dumps(state))
        except (ValidationError, RecursionError):  # its text may quote the state
            run_state = None
        if run_state is None or not run_state._waits():
            raise ResumeError(
                "the state cannot be read: its contents are none of a run that waits", lasting="state_invalid"
            )
        return run_state

    def _waits(self) -> bool:
        """Return whether each call of the answer has a result or waits, and one waits, in nested runs as well."""
        if self.answer is None or not self.waiting or self.cut or self.unsent:
            return False
        if not all(call.nested is None or call.nested._waits() for call in self.waiting):
            return False
        calls = sorted((call.id or "", call.name) for call in self.answer.tool_calls)
        results = [(result.call_id, result.name) for result in self.results]
        return calls == sorted([*results, *((call.call_id, call.tool) for call in self.waiting)])

    def leaves(self) -> list[WaitingLeaf]:
        """Return the calls to decide about, in call order: those of the run, and of the runs nested in it."""
        return [leaf for call in self.waiting for leaf in call.leaves()]

    def waits_for(self, call_id: str) -> bool:
        """Return whether a call with this id waits in the run, or in a run nested in it."""
        return any(leaf.call_id == call_id for leaf in self.leaves())

    def check_decisions(self, decisions: Mapping[str, CallDecision | Denied]) -> None:
        """Raise `ResumeError` if a decision is about a call that does not wait for a decision of its kind."""
        leaves = self.leaves()
        waiting = {leaf.call_id: leaf.call for leaf in leaves}
        if unknown_ids := decisions.keys() - waiting.keys():
            raise ResumeError(f"no call with the id {min(unknown_ids)!r} waits in this state")
        for call_id, decision in decisions.items():
            if sum(leaf.call_id == call_id for leaf in leaves) > 1:  # the ids of a provider may have a slash
                raise ResumeError(f"several calls with the id {call_id!r} wait in this state, in nested runs")
            waiting[call_id].check_decision(decision)

    def messages(self) -> tuple[Message, ...]:
        """Return what the loop added to its first request, with the answer and the results of the calls that ran."""
        if self.answer is None:
            return self.added
        parts = [result.result().part() for result in self.results]
        return (*self.added, self.answer, *([tool_message_of(parts)] if parts else ()))

    def nested_runs(self) -> list[tuple[str, WaitingRun]]:
        """Return the runs that calls of the run wait for, each with the name of the tool that has begun it."""
        return [(call.tool, call.nested) for call in self.waiting if call.nested is not None]

    def check_tools(self, tools: Mapping[str, ToolCallback]) -> None:
        """Raise `ResumeError` if the definition or the source of a waiting call's tool has changed.

        A tool that is missing is not checked, because an advisor or a resolver may add it.
        """
        for call in self.waiting:
            if call.tool in tools:
                check_unchanged(call.call_id, call.tool, call.definition_digest, call.source, tools[call.tool])

    def pause(self, tools: Mapping[str, ToolCallback]) -> RunPause:
        """Return where the run paused, or was interrupted after an answer.

        Args:
            tools: the tools of the run that resumes, by name.

        Raises:
            ResumeError: if a waiting call names a tool that is gone, or whose definition or source has changed.
        """
        pending: dict[str, PendingCall] = {}
        for call in self.waiting:
            tool = tools.get(call.tool)
            check_unchanged(call.call_id, call.tool, call.definition_digest, call.source, tool)
            assert tool is not None
            if text_digest(call.arguments) != call.arguments_digest:
                problem = f"the arguments of the waiting call {call.call_id!r} were altered"
                raise ResumeError(problem, lasting="state_invalid")
            pending[call.call_id] = call.pending(tool.definition)
        assert self.answer is not None
        results = _order_results(self.answer, self.results, pending)
        leaves = tuple(leaf for pending_call in pending.values() for leaf in pending_call.leaves())
        earlier = ToolExecutionResult((), False, results, pending=leaves)
        new_ids = {*self.unsent, *(result.call_id for result in results if result.decision == "pending")}
        return RunPause(self.added, self.answer, earlier, self.iteration, new_ids, frozenset(self.cut))


WaitingCall.model_rebuild()  # it refers to `RunState`


def text_digest(text: str) -> str:
    """Return SHA-256 of a text in hex."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _order_results(
    answer: AssistantMessage, kept_results: tuple[KeptResult, ...], pending: Mapping[str, PendingCall]
) -> list[ToolResult]:
    results_by_id = {kept_result.call_id: kept_result.result() for kept_result in kept_results}
    results = []
    for call in answer.tool_calls:
        waits = pending.get(call.id or "")
        if waits is not None:
            results.append(ToolResult(waits.call_id, waits.tool, "", decision="pending", pending=waits))
        elif (result := results_by_id.get(call.id or "")) is not None:
            results.append(result)
        else:  # the run was interrupted before the call had a result
            results.append(ToolResult(call.id or "", call.name, "", decision="pending"))
    return results


def _parse(text: str) -> tuple[object, str]:
    """Return the unverified state in a text, and the digest in the text."""
    try:
        envelope = json.loads(text)
        version, state, digest = (envelope[name] for name in ("traced_tools_state", "state", "digest"))
        json.dumps(state)  # raises here and not in `_digest` for a state that cannot be encoded
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ResumeError(
            "the text is not the state of a run: pass `response.state` as it is", lasting="state_invalid"
        ) from None
    if version != STATE_VERSION:
        raise ResumeError(
            f"the state is of another version than {STATE_VERSION}: resume it with the release that made it"
        )
    return state, digest if isinstance(digest, str) else ""


def _digest(state: object, key: StateKey | None) -> str:
    """Return the digest of a state with the name of its method, and the id of the key if there is one."""
    canonical = json.dumps(state, sort_keys=True, separators=(",", ":")).encode()
    if key is None:
        return f"sha256:{hashlib.sha256(canonical).hexdigest()}"
    return f"{_SIGNED}:{key.id}:{key.digest(canonical)}"


def _refusal(digest: str, expected: str) -> ResumeError:
    """Return why a state with another digest than expected is refused; a client with another key may accept it."""
    method, _, rest = digest.partition(":")
    expected_method, _, expected_rest = expected.partition(":")
    if (method, expected_method) == (_SIGNED, "sha256"):
        return ResumeError("the state is signed with a key: pass the same key as approval_key=")
    if (method, expected_method) == ("sha256", _SIGNED):
        return ResumeError("the state is not signed with the configured key")
    if method == expected_method == _SIGNED and rest.partition(":")[0] != expected_rest.partition(":")[0]:
        return ResumeError(
            "the state is signed with a key that is not configured: pass the key in approval_key= as well"
        )
    return ResumeError("the state was altered: its digest does not match", lasting="state_invalid")
