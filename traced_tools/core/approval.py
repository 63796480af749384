"""Decisions about tool calls that wait for approval or for input, and the calls that wait."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field, replace
from datetime import timedelta
from typing import Any, Final, Literal, Protocol, get_args

from traced_tools.core.checks import check_by, check_json_object, expect
from traced_tools.core.enums import LOCAL
from traced_tools.core.frozen import frozen
from traced_tools.core.policy_verdict import PolicyVerdict
from traced_tools.core.readable import readable_arguments
from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.core.tool_input import PendingInput, Provide

ApprovalScope = Literal["call", "run", "arguments", "tool"]
APPROVAL_SCOPES: Final = get_args(ApprovalScope)


@frozen
class Approve:
    """The decision that a tool call may run.

    Args:
        by: the person or service that approves. The audit trail, spans and events have a pseudonym of
            the name, unless the trail stores texts, or content is captured.
        arguments: other arguments for the tool, as a JSON object. They are validated, and policies decide about them.
            None for those of the call.
        scope: what is approved. `call`: this call. `run`: all calls of the tool for the rest of the run. `arguments`:
            all calls of the tool with these arguments. `tool`: all calls of the tool. The scopes `arguments` and `tool`
            make a standing rule for the same agent and principal.
        expires: how long a standing rule holds; None for as long as its `ApprovalAdvisor` exists.
        code: the reason code, set in code. Spans, events, the decisions metric and the audit trail record it.
        decided_at: when it was decided, in seconds since 1970, which ends the measured wait; None for now.

    Raises:
        TypeError, ValueError: for an invalid argument, or a combination of arguments that means nothing.
    """

    by: str | None = field(default=None, repr=False)
    arguments: Mapping[str, Any] | None = field(default=None, repr=False)
    scope: ApprovalScope = "call"
    expires: timedelta | None = None
    code: str | None = None
    decided_at: float | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_by(self.by)
        expect("decided_at", self.decided_at, (int, float, type(None)), "a number or None")
        expect("arguments", self.arguments, (Mapping, type(None)), "a mapping or None")
        check_json_object("arguments", self.arguments)
        expect("expires", self.expires, (timedelta, type(None)), "a timedelta or None")
        expect("code", self.code, (str, type(None)), "a str or None")
        if self.scope not in APPROVAL_SCOPES:
            raise ValueError(f"scope must be one of {', '.join(APPROVAL_SCOPES)}")
        if self.expires is not None and self.scope not in ("arguments", "tool"):
            raise ValueError("expires is for standing rules: pass scope='arguments' or scope='tool' with it")
        if self.expires is not None and self.expires <= timedelta():
            raise ValueError("expires must be a positive duration")
        if self.arguments is not None and self.scope != "call":
            raise ValueError("other arguments can be approved for one call only: pass scope='call' with arguments")


@frozen
class Reject:
    """The decision that a tool call may not run.

    Args:
        reason: what the model reads.
        by: the person or service that refuses. The audit trail, spans and events have a pseudonym of
            the name, unless the trail stores texts, or content is captured.
        code: the reason code, set in code. Spans, events, the decisions metric and the audit trail record it.
        decided_at: when it was decided, in seconds since 1970, which ends the measured wait; None for now.
    """

    reason: str = field(repr=False)
    by: str | None = field(default=None, repr=False)
    code: str | None = None
    decided_at: float | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        expect("reason", self.reason, str, "a str")
        expect("decided_at", self.decided_at, (int, float, type(None)), "a number or None")
        check_by(self.by)
        expect("code", self.code, (str, type(None)), "a str or None")


@frozen
class Undecided:
    """The answer if no person can decide now: the run ends, and the call waits in `response.pending`."""


@frozen
class Denied:
    """The answer that no decision can be reached, so that the call is denied.

    Args:
        reason: what the model reads.
        code: the reason code, set in code.
        decided_at: when no decision could be reached any more, in seconds since 1970; None for now.
    """

    reason: str = field(repr=False)
    code: str
    decided_at: float | None = field(default=None, compare=False)


def nested_id(call_id: str, inner: str) -> str:
    """Return the id of a call in a nested run that the tool of the call `call_id` has begun."""
    return f"{call_id}/{inner}"


ApprovalAnswer = Approve | Reject | Undecided | Denied
CallDecision = Approve | Reject | Provide
"""A decision about a call that waits."""


class WaitingRun(Protocol):
    """The state of a run that waits; see `RunState`."""

    @property
    def id(self) -> str:
        """Identifies the state."""

    @property
    def agent(self) -> str:
        """The name of the client."""

    @property
    def is_kept(self) -> bool:
        """Whether a store keeps the state."""

    def waits_for(self, call_id: str) -> bool:
        """Return whether a call with this id waits in the run, or in a run nested in it."""

    def check_decisions(self, decisions: Mapping[str, CallDecision | Denied]) -> None:
        """Raise `ResumeError` if a decision is about a call that does not wait, or not for such a decision."""


@frozen
class NestedPause:
    """A run that a tool has begun, and that waits.

    Attributes:
        run: the state of the run.
        calls: the calls that wait in it, and in the runs nested in it.
    """

    run: WaitingRun = field(repr=False)
    calls: tuple[PendingCall, ...]


@frozen
class DecidedPause:
    """A nested run with which a call goes on.

    Attributes:
        run: the state of the run.
        decisions: the decisions about its calls, by their ids in the run; a call without a decision keeps waiting.
        arguments: the arguments of the call that began the run, as canonical JSON (RFC 8785).
    """

    run: WaitingRun = field(repr=False)
    decisions: Mapping[str, CallDecision | Denied] = field(repr=False)
    arguments: str = field(repr=False)


@frozen(kw_only=True)
class PendingCall:
    """A tool call that waits for a decision: an approval, or the input that its tool has asked for.

    Attributes:
        call_id: the call's id. If an agent waits whose tool the run has called, it is the id of the tool's call, a
            slash, and the id of the call in the agent's run.
        tool: the tool's name.
        arguments: the arguments that the tool would receive, as canonical JSON (RFC 8785).
        bound: the arguments before any advisor changed them, as canonical JSON, with the defaults of the tool. Once the
            call is decided, it goes on with them, even if a default is another one then; None if they are not known.
        definition: the definition of the tool that the model received.
        source: where the tool comes from: `local`, or the configured name of a server.
        reason: why the call requires approval, in words; None if only the tool says so.
        rule: the reason code of the advisor that requires approval, such as the id of a policy's rule; None if only the
            tool requires it.
        policy_rule: the id of the policy's rule for the call; None if no rule matches.
        policy: the verdict of the policy that lets the call run if it is approved; None if no policy decides.
        intent: the model's reason for the call, if known.
        requested_at: when the call began to wait, in seconds since 1970.
        held: whether the call needs no decision, and waits only for the decisions about other calls of its answer.
        input: what the tool, which has begun, asks for; None for a call that waits for approval, or is held.
        approval: the approval that a call has whose tool has begun and waits; None if it needed none.
        path: the tools through which agents were asked, the outermost first, if the call waits in a nested run; empty
            for a call of the run itself.
        nested: the run that the call's tool has begun and that waits; None in `response.pending`, which has the calls
            of that run instead.
    """

    call_id: str
    tool: str
    arguments: str = field(repr=False)
    bound: str | None = field(default=None, repr=False)
    definition: ToolDefinition = field(repr=False)
    source: str = LOCAL
    reason: str | None = field(default=None, repr=False)
    rule: str | None = None
    policy_rule: str | None = None
    policy: PolicyVerdict | None = None
    intent: str | None = field(default=None, repr=False)
    requested_at: float
    held: bool = False
    input: PendingInput | None = None
    approval: Approve | None = None
    path: tuple[str, ...] = ()
    nested: NestedPause | None = None

    @property
    def has_begun(self) -> bool:
        """Whether the tool of the call has begun, so that it cannot be reported as not run."""
        return self.input is not None or self.nested is not None

    def leaves(self) -> tuple[PendingCall, ...]:
        """Return the calls to decide about: this one, or those of the nested run that it waits for."""
        if self.nested is None:
            return (self,)
        return tuple(
            replace(call, call_id=nested_id(self.call_id, call.call_id), path=(self.tool, *call.path))
            for call in self.nested.calls
        )

    @property
    def args(self) -> dict[str, Any]:
        """The arguments that the tool would receive, as a JSON object."""
        arguments: dict[str, Any] = json.loads(self.arguments)
        return arguments

    @property
    def readable_arguments(self) -> str:
        """The arguments as JSON for a person who decides: on one line, with long strings cut, at most 2,000 characters.

        Characters that cannot be seen or turn the direction of the line are escaped, because a model wrote them.
        """
        return readable_arguments(self.arguments)
