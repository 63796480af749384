"""A tool call that is about to run, as advisors see it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from traced_tools.core.checks import expect
from traced_tools.core.frozen import frozen
from traced_tools.core.messages import ToolCall
from traced_tools.core.policy_verdict import PolicyVerdict
from traced_tools.core.tool_context import ToolContext
from traced_tools.core.tool_definition import ToolDefinition, ToolMetadata
from traced_tools.core.tool_result import ToolResult
from traced_tools.tools.refusals import denied_result
from traced_tools.tools.schema.values import read_only

if TYPE_CHECKING:
    from traced_tools.core.tool_definition import ToolCallback


@frozen
class ToolInvocation:
    """A tool call that is about to run, as `advise_tool` receives it.

    Attributes:
        name: the tool's name.
        arguments: the arguments as canonical JSON (RFC 8785): repaired, validated and with defaults. An advisor
            can change them with `replace(arguments=...)`; the new arguments are validated again. Those that `augmented`
            adds are not among them unless the tool receives them, too.
        id: the call's id.
        iteration: the iteration of the loop, from 1; 0 outside a loop.
        definition: the definition of the tool that the model receives.
        context: the context that the tool receives.
        metadata: the settings of the tool, such as its time-out.
        batch_index: the position among the calls of the same answer, from 0.
        intent: the model's reason for the call, if known. It is content, so it is recorded only if capture allows it.
        approved: whether the call, with these arguments, has an approval.
        code: the reason code of an advisor that lets the call run, such as the rule of a policy; None if there is none.
        rule: the id of the policy's rule that is for the call; None if there is none.
        callback: the tool itself; None for a call that no run has made.
        policy: the verdict of the innermost policy that has let the call pass; None if no policy has.
        evaluated: the verdicts of policies that are only evaluated, the outermost first.
        approval_reason: why an advisor requires approval of the call; None if no advisor does.
        approval_code: the reason code of the advisor that requires approval; None if it has none.
    """

    name: str
    arguments: str = field(repr=False)
    id: str
    iteration: int
    definition: ToolDefinition = field(repr=False)
    context: ToolContext
    metadata: ToolMetadata = field(default_factory=ToolMetadata, repr=False)
    batch_index: int = 0
    intent: str | None = field(default=None, repr=False)
    approved: bool = False
    code: str | None = None
    rule: str | None = None
    callback: ToolCallback | None = field(default=None, repr=False, compare=False)
    approval_reason: str | None = field(default=None, repr=False)
    approval_code: str | None = None
    policy: PolicyVerdict | None = None
    evaluated: tuple[PolicyVerdict, ...] = ()
    _args: Mapping[str, Any] | None = field(default=None, init=False, repr=False, compare=False)
    _values: dict[str, Any] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def requires_approval(self) -> bool:
        """Whether an advisor has required approval of the call, or its tool may require it."""
        return self.approval_reason is not None or self.metadata.requires_approval is not False

    @property
    def args(self) -> Mapping[str, Any]:
        """The arguments that the tool will receive, as a read-only JSON object: the value of `arguments`.

        Raises:
            ValueError: if an advisor set arguments that are not a JSON object.
        """
        if self._args is None:
            # the text of a large float is that of an integer, so the values are kept beside it
            value = json.loads(self.arguments) if self._values is None else self._values
            if not isinstance(value, dict):
                raise ValueError("the arguments that an advisor set are not a JSON object")
            object.__setattr__(self, "_args", read_only(value))
        return self._args  # type: ignore[return-value]  # it was set just now

    def replace(
        self,
        *,
        arguments: str | Mapping[str, Any] | None = None,
        intent: str | None = None,
        code: str | None = None,
        rule: str | None = None,
        policy: PolicyVerdict | None = None,
        evaluated: PolicyVerdict | None = None,
    ) -> ToolInvocation:
        """Return this call with other arguments (JSON text, or a mapping), a reason, a reason code, or a rule.

        The arguments are validated when they are passed to `call_next`. Inner advisors receive the validated ones. If
        the arguments are invalid, `call_next` returns the result `invalid_arguments`.

        `code` says why the call may run, such as the name of a rule. It is set in code, and recorded as the code of
        `denied` is. `rule` is the id of the policy's rule that decided so, if one did, and `policy` the verdict of the
        policy. If several advisors set one, the innermost counts.

        `evaluated` is the verdict of a policy that is only evaluated. It is recorded beside those of other advisors.
        """
        expect("intent", intent, (str, type(None)), "a str or None")
        expect("code", code, (str, type(None)), "a str or None")
        expect("rule", rule, (str, type(None)), "a str or None")
        expect("policy", policy, (PolicyVerdict, type(None)), "a PolicyVerdict or None")
        expect("evaluated", evaluated, (PolicyVerdict, type(None)), "a PolicyVerdict or None")
        own = self.arguments if arguments is None else ToolCall(self.name, arguments).arguments
        copy = replace(
            self,
            arguments=own,
            intent=self.intent if intent is None else intent,
            code=self.code if code is None else code,
            rule=self.rule if rule is None else rule,
            policy=self.policy if policy is None else policy,
            evaluated=self.evaluated if evaluated is None else self._add_verdict(evaluated),
        )
        return copy._holding(self._values) if own == self.arguments else copy

    def _add_verdict(self, verdict: PolicyVerdict) -> tuple[PolicyVerdict, ...]:
        """Return the evaluated verdicts with one more, which replaces an earlier one of the same advisor."""
        return (*(earlier for earlier in self.evaluated if earlier.advisor != verdict.advisor), verdict)

    def _holding(self, values: dict[str, Any] | None) -> ToolInvocation:
        """Set the values of the arguments, which their text may not show exactly, and return the call."""
        object.__setattr__(self, "_values", values)
        return self

    def requiring_approval(
        self, reason: str, *, code: str | None = None, rule: str | None = None, policy: PolicyVerdict | None = None
    ) -> ToolInvocation:
        """Return this call so that, when it is passed on, its tool runs only if the call is approved.

        Args:
            reason: why the call requires approval, for the approvers.
            code: the reason code, set in code, such as the name of a rule. It is recorded with the decision.
            rule: the id of the policy's rule that decided so, if one did.
            policy: the verdict of the policy that decided so, if one did.
        """
        expect("reason", reason, str, "a str")
        required = replace(
            self.replace(code=code, rule=rule, policy=policy), approval_reason=reason, approval_code=code
        )
        return required._holding(self._values)

    def denied(
        self,
        reason: str,
        *,
        code: str | None = None,
        by: str | None = None,
        rule: str | None = None,
        policy: PolicyVerdict | None = None,
    ) -> ToolResult:
        """Return the result of a call that may not run.

        Args:
            reason: what the model reads.
            code: the reason code, set in code, such as the name of a rule. Spans, events, the decisions metric and the
                audit trail record it.
            by: the person or service that refused the call. The audit trail, spans and events have a pseudonym of
                the name, unless the trail stores texts, or content is captured.
            rule: the id of the policy's rule that decided so, if one did.
            policy: the verdict of the policy that decided so, if one did.
        """
        expect("rule", rule, (str, type(None)), "a str or None")
        expect("policy", policy, (PolicyVerdict, type(None)), "a PolicyVerdict or None")
        return replace(denied_result(self.id, self.name, reason, code, by), rule=rule, policy=policy)

    def answered(self, content: str, value: Any = None) -> ToolResult:
        """Return a result that replaces a run of the tool, such as a cached result; the model reads `content`."""
        expect("content", content, str, "a str")
        return ToolResult(self.id, self.name, content, value=value, decision="answered")

    def end(self, result: ToolResult | str) -> ToolResult:
        """Return a result that ends the run: it is the run's answer, and the model is not called again.

        The other calls of the same answer still run. If several results end the run, the first in call order is the
        answer. The response's `stop_reason` is `advisor`.

        Args:
            result: a result of this call, such as `call_next` or `denied` returned; a str stands for `answered(...)`.
        """
        expect("result", result, (str, ToolResult), "a str or a ToolResult")
        return replace(self.answered(result) if isinstance(result, str) else result, ends_run=True)


CallNext = Callable[[ToolInvocation], Awaitable[ToolResult]]
