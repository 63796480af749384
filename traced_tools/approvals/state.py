"""The state of a run that waits for approval or input, as text with which another process resumes it.

The text is a JSON object with `traced_tools_state` (the version of the format), `state`, and `digest`. The digest is
over the canonical form of `state`: sorted keys and no blanks. Without a key it is SHA-256, which detects an accident.
With a key it is HMAC-SHA-256, which nobody can forge without the key.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Protocol, Self, runtime_checkable

from pydantic import AfterValidator, Field, PlainSerializer, ValidationError, ValidationInfo

from traced_tools.core.approval import Approve, CallDecision, Denied, PendingCall
from traced_tools.core.enums import LOCAL, Decision, ResumeRefusal, ToolOutcome
from traced_tools.core.ids import time_ordered_id
from traced_tools.core.messages import AssistantMessage, ImagePart, Message, Usage, UsageSum, Value
from traced_tools.core.state_key import StateKey
from traced_tools.core.tool_definition import ToolCallback, ToolDefinition, definition_digest
from traced_tools.core.tool_input import InputMethod, InputRequest, PendingInput
from traced_tools.core.tool_result import ToolExecutionResult, ToolResult
from traced_tools.core.totals import NestedUsage
from traced_tools.errors import ResumeError
from traced_tools.run.context import RunContext
from traced_tools.run.resumption import Pause
from traced_tools.stores.columns import escaped, unescaped
from traced_tools.tools.approval import check_decision, check_unchanged

STATE_VERSION: Final = 1
_SIGNED: Final = "hmac-sha256"
_Message = Annotated[Message, Field(discriminator="role")]
_Messages = Annotated[tuple[_Message, ...], Field(repr=False)]


def _read_text(text: str, info: ValidationInfo) -> str:
    return unescaped(text) if info.mode == "json" else text


_AnyText = Annotated[str, PlainSerializer(escaped, when_used="json"), AfterValidator(_read_text)]
"""A text that a model or an application wrote, which may have lone surrogates; in a state, they are escaped."""


class KeptResult(Value):
    """The result of a call that ran, or was refused, before its run paused."""

    call_id: _AnyText
    name: _AnyText = Field(repr=False)
    content: _AnyText = Field(repr=False)
    images: tuple[ImagePart, ...] = Field(default=(), repr=False)
    cut: bool = False
    decision: Decision
    outcome: ToolOutcome | None = None
    error_type: _AnyText | None = None
    advisor: _AnyText | None = None
    reason_code: _AnyText | None = None
    rule: _AnyText | None = None
    by: _AnyText | None = Field(default=None, repr=False)

    @classmethod
    def of(cls, result: ToolResult) -> Self:
        """Return what a state keeps of a result: all but the value that the tool returned, and its exception."""
        return cls(**{name: getattr(result, name) for name in cls.model_fields})

    def result(self) -> ToolResult:
        """Return the result."""
        return ToolResult(**{name: getattr(self, name) for name in type(self).model_fields})


def _check_object(text: str) -> str:
    if not isinstance(json.loads(text), dict):
        raise ValueError("must be a JSON object")
    return text


class KeptQuestion(Value):
    """A question of a tool; see `InputRequest`. The parameters are JSON text, whatever characters they contain."""

    key: _AnyText = Field(repr=False)
    method: InputMethod
    params: Annotated[str, AfterValidator(_check_object)] = Field(repr=False)

    @classmethod
    def of(cls, question: InputRequest) -> Self:
        """Return what is kept of a question."""
        return cls(key=question.key, method=question.method, params=json.dumps({**question.params}))

    def question(self) -> InputRequest:
        """Return the question."""
        return InputRequest(key=self.key, method=self.method, params=json.loads(self.params))


class KeptInput(Value):
    """What a tool asks for; see `PendingInput`."""

    requests: tuple[KeptQuestion, ...] = Field(min_length=1)
    state: _AnyText | None = Field(default=None, repr=False)
    round: int = Field(ge=1)
    answers: Annotated[str, AfterValidator(_check_object)] = Field(default="{}", repr=False)

    @classmethod
    def of(cls, pending: PendingInput) -> Self:
        """Return what a state keeps of the questions."""
        return cls(
            requests=tuple(map(KeptQuestion.of, pending.requests)),
            state=pending.state,
            round=pending.round,
            answers=json.dumps({**pending.answers}),
        )

    def pending(self) -> PendingInput:
        """Return the questions."""
        questions = tuple(each.question() for each in self.requests)
        answers = json.loads(self.answers)
        return PendingInput(requests=questions, state=self.state, round=self.round, answers=answers)


class KeptApproval(Value):
    """The approval of a call that waits for input."""

    by: _AnyText | None = Field(default=None, repr=False)
    code: _AnyText | None = None


class WaitingCall(Value):
    """A call that waits, bound to its arguments, and to the definition and the source of its tool.

    Attributes:
        call_id, tool, arguments, bound, source, reason, rule, policy_rule, intent, requested_at, held: as in
            `PendingCall`.
        arguments_digest: SHA-256 of `arguments` in hex.
        definition_digest: SHA-256 of the tool's definition in hex, as the audit trail has it.
        input: what the tool asks for; None for a call that waits for approval, or is held.
        approval: the approval of a call that waits for input; None if it needed none.
    """

    call_id: _AnyText
    tool: _AnyText
    arguments: _AnyText = Field(repr=False)
    bound: _AnyText | None = Field(default=None, repr=False)
    arguments_digest: str
    definition_digest: str
    source: _AnyText = LOCAL
    reason: _AnyText | None = Field(default=None, repr=False)
    rule: _AnyText | None = None
    policy_rule: _AnyText | None = None
    intent: _AnyText | None = Field(default=None, repr=False)
    requested_at: float
    held: bool = False
    input: KeptInput | None = None
    approval: KeptApproval | None = None

    @classmethod
    def of(cls, call: PendingCall) -> Self:
        """Return the call with its digests."""
        approval = None if call.approval is None else KeptApproval(by=call.approval.by, code=call.approval.code)
        return cls(
            **{name: getattr(call, name) for name in cls._shared()},
            arguments_digest=text_digest(call.arguments),
            definition_digest=definition_digest(call.definition),
            input=None if call.input is None else KeptInput.of(call.input),
            approval=approval,
        )

    def pending(self, definition: ToolDefinition) -> PendingCall:
        """Return the call with the definition of its tool."""
        approval = None if self.approval is None else Approve(by=self.approval.by, code=self.approval.code)
        return PendingCall(
            **{name: getattr(self, name) for name in self._shared()},
            definition=definition,
            input=None if self.input is None else self.input.pending(),
            approval=approval,
        )

    def check_decision(self, decision: CallDecision) -> None:
        """Raise `ResumeError` if the call does not wait for a decision of this kind."""
        check_decision(self.call_id, None if self.input is None else self.input.pending().requests, decision)

    @classmethod
    def _shared(cls) -> list[str]:
        own = ("arguments_digest", "definition_digest", "input", "approval")
        return [name for name in cls.model_fields if name not in own]


class RunState(Value):
    """The state of a run that waits.

    Attributes:
        id: identifies the state.
        run_ids: the ids of the run and of the runs that it resumed, the first one first.
        traceparent: the W3C trace context of the run; None if it was not traced.
        agent: the name of the client.
        conversation_id, principal, attributes: those of the run.
        request: the messages of the request, without what a memory adds.
        added: what the loop added to its request before the answer.
        answer: the answer with the calls.
        results: the results of the other calls of the answer.
        waiting: the calls that wait.
        iteration: the iteration of the answer.
        usage: what the run and the runs before have used, without the runs nested in them.
        nested: what the runs nested in them have used.
        seconds: how long they took.
        is_kept: whether a store keeps the state, so that it can be resumed once, with the store.
        discovered_tools: the names of the tools that a tool search has found for the model, in the order of discovery.
    """

    id: str = Field(default_factory=time_ordered_id)
    run_ids: tuple[str, ...] = Field(min_length=1)
    traceparent: str | None = None
    agent: _AnyText
    conversation_id: _AnyText | None = None
    principal: _AnyText | None = Field(default=None, repr=False)
    attributes: dict[str, Any] = Field(default_factory=dict, repr=False)
    request: _Messages
    added: _Messages
    answer: AssistantMessage = Field(repr=False)
    results: tuple[KeptResult, ...] = ()
    waiting: tuple[WaitingCall, ...] = Field(min_length=1)
    iteration: int = Field(ge=1)
    usage: Usage | None = None
    nested: NestedUsage | None = None
    seconds: float = Field(ge=0, allow_inf_nan=False)
    is_kept: bool = False
    discovered_tools: tuple[str, ...] = Field(default=(), repr=False)

    @classmethod
    def of(
        cls,
        run: RunContext,
        pause: Pause,
        request: tuple[Message, ...],
        traceparent: str | None = None,
        *,
        is_kept: bool = False,
    ) -> Self:
        """Return the state of a run that has paused."""
        before, usage = None if run.resumption is None else run.resumption.paused, UsageSum()
        usage.add(None if before is None else before.usage)
        usage.add(run.totals.usage.total)
        return cls(
            run_ids=(*(() if before is None else before.run_ids), run.id),
            traceparent=traceparent,
            agent=run.agent,
            conversation_id=run.conversation_id,
            principal=run.principal,
            attributes=dict(run.attributes),
            request=request,
            added=pause.added,
            answer=pause.answer,
            results=tuple(KeptResult.of(each) for each in pause.result.results if each.pending is None),
            waiting=tuple(map(WaitingCall.of, pause.result.pending)),
            iteration=pause.iteration,
            usage=usage.total,
            nested=run.totals.nested_usage(),
            seconds=run.tally.seconds(),
            is_kept=is_kept,
            discovered_tools=run.discovered_tools,
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
        state, digest = _parsed(text)
        signed_with = (each for each in keys if digest.startswith(f"{_SIGNED}:{each.id}:"))
        expected = _digest(state, next(signed_with, keys[0] if keys else None))
        if not hmac.compare_digest(digest.encode("utf-8", "surrogatepass"), expected.encode()):
            raise _refused(digest, expected)
        return cls._validated(state)

    @classmethod
    def unverified(cls, text: str) -> Self:
        """Return the state in a text, which may have been altered; raises `ResumeError` as `from_text` does."""
        return cls._validated(_parsed(text)[0])

    @classmethod
    def _validated(cls, state: object) -> Self:
        try:
            found = cls.model_validate_json(json.dumps(state))
        except (ValidationError, RecursionError):  # its text may quote the state
            found = None
        if found is None or not found._has_all_calls():
            raise ResumeError(
                "the state cannot be read: its contents are none of a run that waits", lasting="state_invalid"
            )
        return found

    def _has_all_calls(self) -> bool:
        """Return whether each call of the answer either has a result or waits."""
        calls = sorted((each.id or "", each.name) for each in self.answer.tool_calls)
        results = [(each.call_id, each.name) for each in self.results]
        return calls == sorted([*results, *((each.call_id, each.tool) for each in self.waiting)])

    def check_decisions(self, decisions: Mapping[str, CallDecision]) -> None:
        """Raise `ResumeError` if a decision is about a call that does not wait, or not for such a decision."""
        waiting = {each.call_id: each for each in self.waiting}
        if strange := decisions.keys() - waiting.keys():
            raise ResumeError(f"no call with the id {min(strange)!r} waits in this state")
        for call_id, decision in decisions.items():
            waiting[call_id].check_decision(decision)

    def pause(self, tools: Mapping[str, ToolCallback]) -> Pause:
        """Return where the run paused.

        Args:
            tools: the tools of the run that resumes, by name.

        Raises:
            ResumeError: if a waiting call names a tool that is gone, or whose definition or source has changed.
        """
        pending: dict[str, PendingCall] = {}
        for each in self.waiting:
            tool = tools.get(each.tool)
            check_unchanged(each.call_id, each.tool, each.definition_digest, each.source, tool)
            assert tool is not None
            if text_digest(each.arguments) != each.arguments_digest:
                problem = f"the arguments of the waiting call {each.call_id!r} were altered"
                raise ResumeError(problem, lasting="state_invalid")
            pending[each.call_id] = each.pending(tool.definition)
        results = _in_call_order(self.answer, self.results, pending)
        earlier = ToolExecutionResult((), False, results, pending=tuple(pending.values()))
        return Pause(self.added, self.answer, earlier, self.iteration)


@runtime_checkable
class KeepsPausedRuns(Protocol):
    """A store of runs that wait; see `PendingStore`. `keep` and `claim` are flows."""

    async def keep(self, state: RunState, text: str) -> None:
        """Store a state and its text; the calls in it wait for decisions from now on."""

    async def claim(
        self, state: RunState, decisions: Mapping[str, CallDecision]
    ) -> Mapping[str, CallDecision | Denied]:
        """Spend a state, and return the decisions about its calls: the given ones and those that are stored.

        Raises:
            ResumeError: if the state is spent or not known, or a call was decided otherwise.
        """

    def refuse(self, state: str, reason: ResumeRefusal) -> None:
        """Record, blocking, why a run can never resume from a text, so that it is no longer ready."""

    def withdraw(self, run_id: str) -> bool:
        """Withdraw a run that waits, blocking, so that it never resumes; return whether it waited."""


def text_digest(text: str) -> str:
    """Return SHA-256 of a text in hex."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _in_call_order(
    answer: AssistantMessage, kept: tuple[KeptResult, ...], pending: Mapping[str, PendingCall]
) -> list[ToolResult]:
    known = {each.call_id: each.result() for each in kept}
    results = []
    for call in answer.tool_calls:
        waits = pending.get(call.id or "")
        if waits is not None:
            results.append(ToolResult(waits.call_id, waits.tool, "", decision="pending", pending=waits))
        else:
            results.append(known[call.id or ""])
    return results


def _parsed(text: str) -> tuple[object, str]:
    """Return the state in a text, which nobody has checked, and its digest."""
    try:
        found = json.loads(text)
        version, state, digest = (found[name] for name in ("traced_tools_state", "state", "digest"))
        json.dumps(state)
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


def _refused(digest: str, expected: str) -> ResumeError:
    """Return why a state with another digest than expected is refused; a client with another key may accept it."""
    method, _, rest = digest.partition(":")
    wanted, _, own = expected.partition(":")
    if (method, wanted) == (_SIGNED, "sha256"):
        return ResumeError("the state is signed with a key: pass the same key as approval_key=")
    if (method, wanted) == ("sha256", _SIGNED):
        return ResumeError("the state is not signed with the configured key")
    if method == wanted == _SIGNED and rest.partition(":")[0] != own.partition(":")[0]:
        return ResumeError(
            "the state is signed with a key that is not configured: pass the key in approval_key= as well"
        )
    return ResumeError("the state was altered: its digest does not match", lasting="state_invalid")
