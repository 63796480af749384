"""A rule of a policy: the calls that it is for, and its decision."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, get_args

from traced_tools.core.checks import checked_mapping, expect, expect_callable
from traced_tools.core.enums import REASON_CODES
from traced_tools.core.tool_definition import ToolAnnotations
from traced_tools.errors import ConfigurationError
from traced_tools.policy.conditions import ArgumentConditions

PolicyDecision = Literal["allow", "deny", "require_approval"]
POLICY_DECISIONS: Final = get_args(PolicyDecision)

Predicate = Callable[[Mapping[str, Any]], bool | Awaitable[bool]]
"""Takes the validated arguments as a read-only JSON object; returns whether the rule is for the call."""

ANNOTATIONS: Final = tuple(ToolAnnotations.model_fields)

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}")
_WILDCARD: Final = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class CallFacts:
    """What a policy reads of a tool call.

    Attributes:
        tool: the tool's name.
        source: where the tool comes from, such as `local`.
        agent: the client's name.
        attributes: the attributes of the run.
        read_annotations: returns what the tool's author says about it; called only if a rule needs it.
        read_arguments: returns the validated arguments; called only if a predicate needs them.
    """

    tool: str
    source: str
    agent: str
    attributes: Mapping[str, Any]
    read_annotations: Callable[[], ToolAnnotations] = field(repr=False)
    read_arguments: Callable[[], Mapping[str, Any]] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule of a policy. It is for a call that matches every condition; a rule without conditions is for every call.

    Args:
        id: the rule's name: 1 to 64 ASCII letters, digits, `_`, `.`, `:` and `-`. It is the reason code of the calls
            that the rule decides, in telemetry and in the audit trail.
        decision: `allow`, `deny`, or `require_approval`, which allows approved calls and denies all others.
        tools: the tool's name, or several. `*` stands for any characters, `?` for one, `[ab]` for one of several.
        source: where the tool comes from: `local`, or the configured name of a server; with wildcards as in `tools`.
        agents: the client's name, or several, with wildcards as in `tools`.
        attributes: values of attributes of the run; a list accepts each of its values.
        annotations: hints of the tool's `ToolAnnotations` and their values, such as `{"read_only": True}`. A tool whose
            author does not give a hint meets no condition on it.
        when: a plain or async function of the validated arguments that returns True or False. If it raises, or returns
            anything else, the call is denied.
        reason: what the model reads if the call is denied. By default, only that the policy does not allow it.

    Raises:
        TypeError: if an argument has a wrong type.
        ConfigurationError: if the id or the decision is invalid, or a list is empty.
    """

    id: str
    decision: PolicyDecision
    tools: str | Sequence[str] = "*"
    source: str = "*"
    agents: str | Sequence[str] = "*"
    attributes: Mapping[str, Any] = field(default_factory=dict)
    annotations: Mapping[str, bool] = field(default_factory=dict)
    when: Predicate | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        expect("id", self.id, str, "a str")
        if not _ID.fullmatch(self.id):
            raise ConfigurationError(
                f"rule id {self.id[:64]!a}: use 1 to 64 ASCII letters, digits, '_', '.', ':' and '-', "
                "with a letter or a digit first"
            )
        if self.id in REASON_CODES:
            raise ConfigurationError(f"rule id {self.id!r} is a reason code of traced_tools: choose another id")
        if self.decision not in POLICY_DECISIONS:
            raise ConfigurationError(f"rule {self.id!r}: decision must be one of {', '.join(POLICY_DECISIONS)}")
        expect("source", self.source, str, "a str")
        expect("reason", self.reason, str, "a str")
        expect_callable("when", self.when)
        object.__setattr__(self, "tools", self._patterns("tools", self.tools))
        object.__setattr__(self, "agents", self._patterns("agents", self.agents))
        expect("attributes", self.attributes, Mapping, "a mapping of keys to values")
        accepted = {key: _values(value) for key, value in checked_mapping("attributes", self.attributes).items()}
        for key, values in accepted.items():
            if not values:
                raise ConfigurationError(f"rule {self.id!r}: attributes[{key!r}] has no value: pass at least one")
        object.__setattr__(self, "attributes", accepted)
        expect("annotations", self.annotations, Mapping, "a mapping of hints to True or False")
        hints = dict(self.annotations)
        for hint, value in hints.items():
            if hint not in ANNOTATIONS:
                raise ConfigurationError(
                    f"rule {self.id!r}: unknown hint {str(hint)[:64]!a} in annotations: use {', '.join(ANNOTATIONS)}"
                )
            expect(f"annotations[{hint!r}]", value, bool, "True or False")
        object.__setattr__(self, "annotations", hints)

    def _patterns(self, argument: str, given: object) -> tuple[str, ...]:
        patterns: Any = (given,) if isinstance(given, str) else given
        expect(argument, patterns, Iterable, "a str or a list of str")
        found = tuple(patterns)
        for index, each in enumerate(found):
            expect(f"{argument}[{index}]", each, str, "a str")
        if not found or "" in found:
            raise ConfigurationError(f"rule {self.id!r}: {argument} must have at least one pattern, and no empty one")
        return found

    def is_for(self, call: CallFacts) -> bool:
        """Return whether the call meets all conditions except `when`."""
        return (
            any(fnmatchcase(call.tool, pattern) for pattern in self.tools)
            and fnmatchcase(call.source, self.source)
            and any(fnmatchcase(call.agent, pattern) for pattern in self.agents)
            and all(_is_among(call.attributes.get(key), values) for key, values in self.attributes.items())
            and (not self.annotations or self._is_for_annotations(call.read_annotations()))
        )

    def _is_for_annotations(self, annotations: ToolAnnotations) -> bool:
        return all(getattr(annotations, hint) is value for hint, value in self.annotations.items())

    def covers(self, later: Rule) -> bool:
        """Return whether the rule certainly decides every call that `later` is for."""
        return (
            self._holds_whenever(later)
            and all(any(_covers(own, other) for own in self.tools) for other in later.tools)
            and _covers(self.source, later.source)
            and all(any(_covers(own, other) for own in self.agents) for other in later.agents)
            and all(
                key in later.attributes and all(_is_among(value, values) for value in later.attributes[key])
                for key, values in self.attributes.items()
            )
            and self.annotations.items() <= later.annotations.items()
        )

    def _holds_whenever(self, later: Rule) -> bool:
        """Return whether no call passes the predicate of this rule by and is decided, or denied, by that of `later`."""
        if self.when is None:
            return True
        if not (isinstance(self.when, ArgumentConditions) and isinstance(later.when, ArgumentConditions)):
            return False
        # a call that lacks a value passes an `allow` by, and is denied if `later` is not one
        if self.decision == "allow" and later.decision != "allow" and not later.when.require_values_of(self.when):
            return False
        return self.when.are_implied_by(later.when)


def problem_of(rules: tuple[Rule, ...], index: int) -> str | None:
    """Return why the rule at `index` cannot follow the rules before it; None if it can."""
    rule = rules[index]
    for earlier in rules[:index]:
        if earlier.id == rule.id:
            return f"two rules have the id {rule.id!r}: choose another id for one of them"
        if earlier.covers(rule):
            return (
                f"rule {rule.id!r} can never decide, because rule {earlier.id!r} before it decides all of its calls: "
                "move it up, narrow the earlier rule, or delete it"
            )
    return None


def _covers(pattern: str, other: str) -> bool:
    """Return whether every text that matches `other` certainly matches `pattern`."""
    if pattern in ("*", other):
        return True
    wildcard = _WILDCARD.search(other)
    if wildcard is None:
        return fnmatchcase(other, pattern)
    prefix = pattern[:-1]  # `get_*` covers `get_user_?`
    return pattern.endswith("*") and not _WILDCARD.search(prefix) and other[: wildcard.start()].startswith(prefix)


def _values(value: object) -> tuple[Any, ...]:
    return tuple(_scalars(value))


def _scalars(value: object) -> Iterator[Any]:
    for each in value if isinstance(value, list | tuple | set | frozenset) else (value,):
        expect("attributes", each, (str, bool, int, float), "a str, bool, int or float, or a list of them")
        yield each


def _is_among(value: object, accepted: Sequence[Any]) -> bool:
    """Return whether a value, or one item of a sequence, is accepted. `True` is not `1`."""
    if isinstance(value, list | tuple):
        return any(_is_among(each, accepted) for each in value)
    return any(isinstance(value, bool) is isinstance(each, bool) and value == each for each in accepted)
