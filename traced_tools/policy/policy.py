"""A policy: rules in order, of which the first that is for a call decides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from traced_tools.core.checks import expect, expect_each
from traced_tools.core.enums import POLICY_DECISIONS, PolicyDecision
from traced_tools.errors import ConfigurationError
from traced_tools.flow.steps import InlineCall
from traced_tools.policy.conditions import ArgumentConditions, NoValueError
from traced_tools.policy.digest import digest_of, digest_of_rules
from traced_tools.policy.missing_names import MissingName, missing_names
from traced_tools.policy.rule import CallFacts, Rule
from traced_tools.policy.rule_index import RuleIndex
from traced_tools.policy.rules_by_name import RulesByName
from traced_tools.policy.yaml_file import read_bytes, read_policy
from traced_tools.tools.toolset import SourceNames

BY_DEFAULT: Final = "policy_default"
"""The reason code of a call that no rule is for."""
BY_ERROR: Final = "policy_error"
"""The reason code of a call that is denied because a predicate failed."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a policy decides about a call.

    Attributes:
        decision: the decision.
        code: the reason code: the id of the rule, `policy_default` or `policy_error`.
        reason: what the model reads if the call is denied, or the approver if it requires approval; blank for the usual
            text.
        rule: the rule that decided, or whose predicate failed; None if no rule is for the call.
        error: what the predicate, or the resolver of the principal's attributes, raised; None unless the code is
            `policy_error`.
    """

    decision: PolicyDecision
    code: str
    reason: str = ""
    rule: Rule | None = None
    error: Exception | None = field(default=None, repr=False)


class Policy:
    """Rules that allow or deny tool calls, or require their approval. The first rule that is for a call decides.

    Args:
        rules: the rules in order.
        default: the decision about a call that no rule is for: `deny`, `allow` or `require_approval`.

    Raises:
        TypeError: if an item is not a rule.
        ConfigurationError: if the default is invalid, there is no rule, two rules have the same id, or a rule can never
            decide because an earlier rule decides all of its calls.
    """

    def __init__(self, rules: Iterable[Rule], *, default: PolicyDecision = "deny") -> None:
        expect("rules", rules, Iterable, "a list of Rule objects")
        self.rules: tuple[Rule, ...] = tuple(rules)
        expect_each("rules", self.rules, Rule, "a Rule")
        if default not in POLICY_DECISIONS:
            raise ConfigurationError(f"default must be one of {', '.join(POLICY_DECISIONS)}")
        if not self.rules:
            raise ConfigurationError("a policy needs at least one rule")
        self.default: Final = default
        index = RuleIndex()
        for rule in self.rules:
            if (problem := index.add(rule)) is not None:
                raise ConfigurationError(problem)
        self._rules_by_name = RulesByName(self.rules)
        self.path: Path | None = None
        self._digest: str | None = None
        self._spelling = tuple(rule for rule in self.rules if rule.spelled_names)
        self._spells_for_some = not all(rule.is_for_every_principal for rule in self._spelling)
        self._last_run: tuple[object, ...] | None = None
        self._missing: set[MissingName] = set()

    @classmethod
    def load(cls, path: str | Path) -> Policy:
        """Return the policy in a YAML file. Needs the extra `policy`.

        Raises:
            ConfigurationError: if the file cannot be read or is invalid. The text has the file, the line and what to
                do.
        """
        rules, default, digest = read_policy(Path(path))
        policy = cls(rules, default=default)
        policy.path, policy._digest = Path(path).absolute(), digest
        return policy

    @property
    def digest(self) -> str:
        """The first 16 hexadecimal digits of a SHA-256: another policy has another digest.

        It is that of the file's contents for `Policy.load`, and of the rules and the default otherwise. A function in
        `where` counts by its module and its qualified name only: a change of its code, or of what it refers to, does
        not change the digest, and functions that share a name, such as lambdas, are not told apart.
        """
        if self._digest is None:
            self._digest = digest_of_rules(self.rules, self.default)
        return self._digest

    def check_file(self) -> None:
        """Raise `ConfigurationError` if the file that `load` has read has other contents now, or cannot be read."""
        if self.path is not None and (now := digest_of(read_bytes(self.path))) != self.digest:
            raise ConfigurationError(
                f"{self.path}: the policy has changed since it was loaded: it has the digest {now}, and the loaded one "
                f"has {self.digest}: restart the application, or restore the file"
            )

    @property
    def reads_principal(self) -> bool:
        """Whether a rule has a condition on an attribute of the principal."""
        return any(isinstance(rule.where, ArgumentConditions) and rule.where.reads_principal for rule in self.rules)

    def new_missing_names(
        self, agent: str, principal: str | None, attributes: Mapping[str, Any], tools: Mapping[str, SourceNames]
    ) -> list[MissingName]:
        """Return the names in rules for a run that no tool of the run has, and that were not returned before.

        Args:
            agent: the client's name.
            principal: on whose behalf the run is; None if the run has no principal.
            attributes: the attributes of the run.
            tools: the names of the tools of each source.
        """
        run = (agent, attributes, tools, principal if self._spells_for_some else None)
        if not self._spelling or run == self._last_run:  # most runs have the tools of the last one
            return []
        self._last_run = run
        rules = (
            rule for rule in self._spelling if rule.is_for_run(agent, attributes) and rule.is_for_principal(principal)
        )
        new = [missing for missing in missing_names(rules, tools) if missing not in self._missing]
        self._missing.update(new)
        return new

    async def decide(self, call: CallFacts) -> Verdict:
        """Decide about a call, as a flow. A predicate that fails denies the call."""
        for rule in self._rules_by_name.candidates(call):
            try:
                applies = rule.is_for(call) and (rule.where is None or await _holds(rule, call))
            except Exception as error:
                return Verdict("deny", BY_ERROR, "the policy could not be checked", rule, error)
            if applies:
                return Verdict(rule.then, rule.id, rule.reason, rule)
        return Verdict(self.default, BY_DEFAULT)

    def __repr__(self) -> str:
        return f"<Policy of {len(self.rules)} rules, default {self.default!r}>"


async def _holds(rule: Rule, call: CallFacts) -> bool:
    """Return what the predicate of a rule returns; raise `TypeError` unless it is a bool."""
    where = rule.where
    assert callable(where)
    try:
        if isinstance(where, ArgumentConditions):
            arguments = call.read_arguments() if where.reads_arguments else {}
            needs_principal = where.reads_principal and not where.exclude(arguments)
            holds = where(arguments, await call.read_principal() if needs_principal else {})
        else:
            holds = await InlineCall(where, call.read_arguments())
    except NoValueError:
        if rule.then != "allow":  # the rule might be for the call, so the call must not get past it
            raise
        return False
    if not isinstance(holds, bool):
        raise TypeError(f"the predicate of rule {rule.id!r} must return True or False, not {type(holds).__name__}")
    return holds
