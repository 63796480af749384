"""The state of a run that waits for approval, as text with which another process resumes it.

The text is a JSON object with `traced_tools_state` (the version of the format), `state`, and `digest`. The digest is
over the canonical form of `state`: sorted keys and no blanks. Without a key it is SHA-256, which detects an accident.
With a key it is HMAC-SHA-256, which nobody can forge without the key.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from typing import Annotated, Any, Final, Protocol, Self, runtime_checkable

from pydantic import Field, ValidationError

from traced_tools.core.approval import Approve, Denied, PendingCall, Reject
from traced_tools.core.enums import Decision, ToolOutcome
from traced_tools.core.ids import time_ordered_id
from traced_tools.core.messages import AssistantMessage, ImagePart, Message, Usage, Value
from traced_tools.core.secret_key import SecretKey
from traced_tools.core.tool_definition import ToolCallback, ToolDefinition, definition_digest
from traced_tools.core.tool_result import ToolExecutionResult, ToolResult
from traced_tools.errors import ResumeError
from traced_tools.run.context import RunContext
from traced_tools.run.resumption import Pause, Resumption

STATE_VERSION: Final = 1
KEY_VARIABLE: Final = "TRACED_TOOLS_STATE_KEY"
_Message = Annotated[Message, Field(discriminator="role")]
_Messages = Annotated[tuple[_Message, ...], Field(repr=False)]


class StateKey(SecretKey):
    """A key for the digests of states; see `SecretKey`."""

    __slots__ = ()

    _purpose = "key of states"

    @classmethod
    def configured(cls, secret: bytes | str | None) -> StateKey | None:
        """Return the key of an application: `secret`, else the variable `TRACED_TOOLS_STATE_KEY`, else None."""
        found = os.environ.get(KEY_VARIABLE) or None if secret is None else secret
        return None if found is None else cls(found.encode() if isinstance(found, str) else found)

    def digest(self, canonical: bytes) -> str:
        """Return the HMAC of a canonical state, in hex."""
        return self._hmac(b"state\0" + canonical)


class KeptResult(Value):
    """The result of a call that ran, or was refused, before its run paused."""

    call_id: str
    name: str = Field(repr=False)
    content: str = Field(repr=False)
    images: tuple[ImagePart, ...] = Field(default=(), repr=False)
    cut: bool = False
    decision: Decision
    outcome: ToolOutcome | None = None
    error_type: str | None = None
    advisor: str | None = None
    reason_code: str | None = None
    by: str | None = Field(default=None, repr=False)

    @classmethod
    def of(cls, result: ToolResult) -> Self:
        """Return what a state keeps of a result: all but the value that the tool returned, and its exception."""
        return cls(**{name: getattr(result, name) for name in cls.model_fields})

    def result(self) -> ToolResult:
        """Return the result."""
        return ToolResult(**{name: getattr(self, name) for name in type(self).model_fields})


class WaitingCall(Value):
    """A call that waits for approval, bound to its arguments and to the definition of its tool.

    Attributes:
        call_id, tool, arguments, bound, reason, rule, intent, requested_at, held: as in `PendingCall`.
        arguments_digest: SHA-256 of `arguments` in hex.
        definition_digest: SHA-256 of the tool's definition in hex, as the audit trail has it.
    """

    call_id: str
    tool: str
    arguments: str = Field(repr=False)
    bound: str | None = Field(default=None, repr=False)
    arguments_digest: str
    definition_digest: str
    reason: str | None = Field(default=None, repr=False)
    rule: str | None = None
    intent: str | None = Field(default=None, repr=False)
    requested_at: float
    held: bool = False

    @classmethod
    def of(cls, call: PendingCall) -> Self:
        """Return the call with its digests."""
        return cls(
            call_id=call.call_id,
            tool=call.tool,
            arguments=call.arguments,
            bound=call.bound,
            arguments_digest=text_digest(call.arguments),
            definition_digest=definition_digest(call.definition),
            reason=call.reason,
            rule=call.rule,
            intent=call.intent,
            requested_at=call.requested_at,
            held=call.held,
        )

    def pending(self, definition: ToolDefinition) -> PendingCall:
        """Return the call with the definition of its tool."""
        return PendingCall(
            call_id=self.call_id,
            tool=self.tool,
            arguments=self.arguments,
            bound=self.bound,
            definition=definition,
            reason=self.reason,
            rule=self.rule,
            intent=self.intent,
            requested_at=self.requested_at,
            held=self.held,
        )


class RunState(Value):
    """The state of a run that waits for approval.

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
        usage: what the run and the runs before have used.
        seconds: how long they took.
        is_kept: whether a store keeps the state, so that it can be resumed once, with the store.
    """

    id: str = Field(default_factory=time_ordered_id)
    run_ids: tuple[str, ...] = Field(min_length=1)
    traceparent: str | None = None
    agent: str
    conversation_id: str | None = None
    principal: str | None = Field(default=None, repr=False)
    attributes: dict[str, Any] = Field(default_factory=dict, repr=False)
    request: _Messages
    added: _Messages
    answer: AssistantMessage = Field(repr=False)
    results: tuple[KeptResult, ...] = ()
    waiting: tuple[WaitingCall, ...] = Field(min_length=1)
    iteration: int = Field(ge=1)
    usage: Usage | None = None
    seconds: float = Field(ge=0, allow_inf_nan=False)
    is_kept: bool = False

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
        before = run.resumption
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
            usage=run.spent().total,
            seconds=run.tally.seconds(),
            is_kept=is_kept,
        )

    def to_text(self, key: StateKey | None) -> str:
        """Return the text of the state."""
        state = self.model_dump(mode="json")
        return json.dumps({"traced_tools_state": STATE_VERSION, "state": state, "digest": _digest(state, key)})

    @classmethod
    def from_text(cls, text: str, key: StateKey | None) -> Self:
        """Return the state in a text.

        Raises:
            ResumeError: if the text is not a state, is of another version, or was altered.
        """
        try:
            found = json.loads(text)
            version, state, digest = (found[name] for name in ("traced_tools_state", "state", "digest"))
        except (ValueError, TypeError, KeyError, RecursionError):
            raise ResumeError("the text is not the state of a run: pass `response.state` as it is") from None
        if version != STATE_VERSION:
            raise ResumeError(
                f"the state is of another version than {STATE_VERSION}: resume it with the release that made it"
            )
        expected = _digest(state, key)
        if not isinstance(digest, str) or not hmac.compare_digest(digest.encode(), expected.encode()):
            raise ResumeError(_problem_of(digest, expected))
        try:
            return cls.model_validate_json(json.dumps(state))
        except ValidationError as error:
            where = ".".join(str(each) for each in error.errors(include_input=False)[0]["loc"])
            raise ResumeError(f"the state cannot be read: {where} is invalid") from None

    def resumption(
        self, decisions: Mapping[str, Approve | Reject | Denied], tools: Mapping[str, ToolCallback]
    ) -> Resumption:
        """Return what the run that resumes starts from.

        Args:
            decisions: the decisions by the call's id.
            tools: the tools of the run that resumes, by name.

        Raises:
            ResumeError: if a waiting call names a tool that is gone or whose definition has changed, or if a decision
                is about a call that does not wait.
        """
        if strange := decisions.keys() - {each.call_id for each in self.waiting}:
            raise ResumeError(f"no call with the id {min(strange)!r} waits in this state")
        pending: dict[str, PendingCall] = {}
        for each in self.waiting:
            tool = tools.get(each.tool)
            if tool is None:
                raise ResumeError(
                    f"the tool {each.tool!r} of the waiting call {each.call_id!r} is gone: pass it in tools="
                )
            if definition_digest(tool.definition) != each.definition_digest:
                raise ResumeError(
                    f"the definition of the tool {each.tool!r} has changed since the call {each.call_id!r} began to "
                    "wait: a decision about it is for the former definition"
                )
            if text_digest(each.arguments) != each.arguments_digest:
                raise ResumeError(f"the arguments of the waiting call {each.call_id!r} were altered")
            pending[each.call_id] = each.pending(tool.definition)
        results = _in_call_order(self.answer, self.results, pending)
        earlier = ToolExecutionResult((), False, results, pending=tuple(pending.values()))
        pause = Pause(self.added, self.answer, earlier, self.iteration)
        return Resumption(pause, decisions, self.iteration, self.run_ids, self.traceparent, self.usage, self.seconds)


@runtime_checkable
class KeepsPausedRuns(Protocol):
    """A store of runs that wait for approval; see `PendingStore`. Both methods are flows."""

    async def keep(self, state: RunState, text: str) -> None:
        """Store a state and its text; the calls in it wait for decisions from now on."""

    async def claim(
        self, state: RunState, decisions: Mapping[str, Approve | Reject]
    ) -> Mapping[str, Approve | Reject | Denied]:
        """Spend a state, and return the decisions about its calls: the given ones and those that are stored.

        Raises:
            ResumeError: if the state is spent or not known, or a call was decided otherwise.
        """


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
        elif (result := known.get(call.id or "")) is not None:
            results.append(result)
        else:
            raise ResumeError(f"the state cannot be read: it has no result of the call {call.id!r}")
    return results


def _digest(state: object, key: StateKey | None) -> str:
    """Return the digest of a state with the name of its method, and the id of the key if there is one."""
    canonical = json.dumps(state, sort_keys=True, separators=(",", ":")).encode()
    if key is None:
        return f"sha256:{hashlib.sha256(canonical).hexdigest()}"
    return f"hmac-sha256:{key.id}:{key.digest(canonical)}"


def _problem_of(digest: object, expected: str) -> str:
    """Return why a state with another digest than expected is refused."""
    method, _, rest = digest.partition(":") if isinstance(digest, str) else ("", "", "")
    wanted, _, own = expected.partition(":")
    if (method, wanted) == ("hmac-sha256", "sha256"):
        return "the state is signed with a key: pass the same key as approval_key="
    if (method, wanted) == ("sha256", "hmac-sha256"):
        return "the state is not signed with the configured key"
    if method == wanted == "hmac-sha256" and rest.partition(":")[0] != own.partition(":")[0]:
        return "the state is signed with another key than the configured one"
    return "the state was altered: its digest does not match"
