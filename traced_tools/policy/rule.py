"""A rule of a policy: the calls that it is for, and its decision."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final

from traced_tools.core.checks import checked_mapping, expect, expect_callable
from traced_tools.core.enums import POLICY_DECISIONS, REASON_CODES, PolicyDecision
from traced_tools.core.tool_definition import ToolAnnotations
from traced_tools.errors import ConfigurationError
from traced_tools.policy.conditions import ArgumentConditions

Predicate = Callable[[Mapping[str, Any]], bool | Awaitable[bool]]
"""Takes the validated arguments as a read-only JSON object; returns whether the rule is for the call."""
Conditions = Mapping[str, Mapping[str, Any]]
"""For each argument, or attribute of the principal, operators and their operands, as in a policy file."""

ANNOTATIONS: Final = tuple(ToolAnnotations.model_fields)

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}")
WILDCARD: Final = re.compile(r"[*?\[]")


async def no_attributes() -> Mapping[str, Any]:
    """Return the attributes of a run without a principal."""
    return {}


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
        own_name: the name by which the source itself knows the tool; None if there is no such name.
        principal: on whose behalf the run is; None if the run has no principal.
        read_principal: returns the attributes of the principal, as a flow; called only if a condition needs them.
    """

    tool: str
    source: str
    agent: str
    attributes: Mapping[str, Any]
    read_annotations: Callable[[], ToolAnnotations] = field(repr=False)
    read_arguments: Callable[[], Mapping[str, Any]] = field(repr=False)
    own_name: str | None = None
    principal: str | None = field(default=None, repr=False)
    read_principal: Callable[[], Awaitable[Mapping[str, Any]]] = field(default=no_attributes, repr=False)

    def has_principal(self, patterns: Sequence[str]) -> bool:
        """Return whether the run has a principal that matches one of the patterns."""
        return self.principal is not None and _match(patterns, self.principal)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of a policy. It is for a call that meets all its conditions; without conditions, it is for every call.

    Args:
        id: the rule's name: 1 to 64 ASCII letters, digits, `_`, `.`, `:` and `-`. It is the reason code of the calls
            that the rule decides, in telemetry and in the audit trail.
        then: the decision: `allow`, `deny`, or `require_approval`, which lets a call run only if somebody approves it.
        tool: the tool's name: a pattern or several. `*` stands for any characters, `?` for one, `[ab]` for `a` or `b`.
            It is the name under which the tool is offered, or the one that its server uses. A rule that allows reads
            the server's name only if `source` names the server.
        source: where the tool comes from, `local` or the configured name of a server: a pattern or several.
        agent: the client's name: a pattern or several.
        principal: on whose behalf the run is: a pattern or several. `*` is for every run. Any other pattern, even `?*`,
            is only for runs that have a principal.
        attributes: values of attributes of the run; a list accepts each of its values.
        annotations: hints of the tool's `ToolAnnotations` and their values, such as `{"read_only": True}`. A tool whose
            author does not give a hint meets no condition on it.
        where: a plain or async function of the validated arguments that returns True or False. If it raises, or returns
            anything else, the call is denied. A plain function must not wait: on asyncio, it runs on the event loop.
            Or conditions, as in a policy file: for each argument, or attribute of the principal, operators and their
            operands, such as `{"principal.team": {"eq": "finance"}}`.
        reason: what the model reads if the call is denied, or the approver if it requires approval. By default, only
            that the policy does not allow it, or requires approval.

    Raises:
        TypeError: if an argument has a wrong type.
        ConfigurationError: if the id, the decision, a hint or a condition is invalid, a list is empty, a pattern is
            empty, or a pattern of `tool` is for no name, because it has a comma, white space around it or a character
            that cannot be printed.
    """

    id: str
    _: KW_ONLY
    then: PolicyDecision
    tool: str | Sequence[str] = "*"
    source: str | Sequence[str] = "*"
    agent: str | Sequence[str] = "*"
    principal: str | Sequence[str] = "*"
    attributes: Mapping[str, Any] = field(default_factory=dict)
    annotations: Mapping[str, bool] = field(default_factory=dict)
    where: Predicate | Conditions | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        self._check_id()
        if self.then not in POLICY_DECISIONS:
            raise ConfigurationError(f"rule {self.id!r}: then must be one of {', '.join(POLICY_DECISIONS)}")
        for argument in ("tool", "source", "agent", "principal"):
            object.__setattr__(self, argument, self._patterns(argument))
        object.__setattr__(self, "attributes", self._accepted_values())
        object.__setattr__(self, "annotations", self._hints())
        if isinstance(self.where, Mapping):
            object.__setattr__(self, "where", self._conditions(self.where))
        else:
            expect_callable("where", self.where)
        expect("reason", self.reason, str, "a str")

    def _check_id(self) -> None:
        expect("id", self.id, str, "a str")
        if not _ID.fullmatch(self.id):
            raise ConfigurationError(
                f"rule id {self.id[:64]!a}: use 1 to 64 ASCII letters, digits, '_', '.', ':' and '-', "
                "with a letter or a digit first"
            )
        if self.id in REASON_CODES:
            raise ConfigurationError(f"rule id {self.id!r} is a reason code of traced_tools: choose another id")

    def _patterns(self, argument: str) -> tuple[str, ...]:
        value = getattr(self, argument)
        values: Any = (value,) if isinstance(value, str) else value
        expect(argument, values, Iterable, "a str or a list of str")
        patterns = tuple(values)
        for index, pattern in enumerate(patterns):
            expect(f"{argument}[{index}]", pattern, str, "a str")
        if not patterns or "" in patterns:
            raise ConfigurationError(f"rule {self.id!r}: {argument} must have at least one pattern, and no empty one")
        if argument == "tool" and (strange := next(filter(_is_no_name, patterns), None)):
            raise ConfigurationError(
                f"rule {self.id!r}: no tool has the name {strange[:64]!a}: for several patterns, use a list, such as "
                "[pay, refund]; for one name, put ? in place of a comma"
            )
        return patterns

    def _accepted_values(self) -> dict[str, tuple[Any, ...]]:
        expect("attributes", self.attributes, Mapping, "a mapping of keys to values")
        accepted = {key: _values(value) for key, value in checked_mapping("attributes", self.attributes).items()}
        for key, values in accepted.items():
            if not values:
                raise ConfigurationError(f"rule {self.id!r}: attributes[{key!r}] has no value: pass at least one")
        return accepted

    def _hints(self) -> dict[str, bool]:
        expect("annotations", self.annotations, Mapping, "a mapping of hints to True or False")
        hints = dict(self.annotations)
        for hint, value in hints.items():
            if hint not in ANNOTATIONS:
                raise ConfigurationError(
                    f"rule {self.id!r}: unknown hint {str(hint)[:64]!a} in annotations: use {', '.join(ANNOTATIONS)}"
                )
            expect(f"annotations[{hint!r}]", value, bool, "True or False")
        return hints

    def _conditions(self, conditions: Mapping[Any, Any]) -> ArgumentConditions:
        for key, operators in conditions.items():
            expect("a key of where", key, str, "a str")
            expect(f"where[{key[:64]!r}]", operators, Mapping, "a mapping of operators to operands")
            for operator in operators:
                expect(f"an operator of where[{key[:64]!r}]", operator, str, "a str")
        if not all(conditions.values()) or not conditions:
            raise ConfigurationError(f"rule {self.id!r}: where has a key without a condition, or no key: add one")
        try:
            return ArgumentConditions(conditions)
        except ValueError as error:
            raise ConfigurationError(f"rule {self.id!r}: where: {error}") from None

    def is_for(self, call: CallFacts) -> bool:
        """Return whether the call meets all conditions except `where`."""
        return (
            (_match(self.tool, call.tool) or self._is_for_own_name(call.own_name))
            and self.is_for_source(call.source)
            and self.is_for_run(call.agent, call.attributes)
            and (self.is_for_every_principal or call.has_principal(self.principal))
            and (not self.annotations or self._is_for_annotations(call.read_annotations()))
        )

    def is_for_source(self, source: str) -> bool:
        """Return whether tools of a source meet the condition on it."""
        return _match(self.source, source)

    def is_for_run(self, agent: str, attributes: Mapping[str, Any]) -> bool:
        """Return whether a run meets the conditions on it."""
        return _match(self.agent, agent) and all(
            _is_among(attributes.get(key), values) for key, values in self.attributes.items()
        )

    @property
    def is_for_every_principal(self) -> bool:
        """Whether the rule is for every run, whoever its principal is, and also for a run without a principal."""
        return "*" in self.principal

    def is_for_principal(self, principal: str | None) -> bool:
        """Return whether a run with this principal, or without one, meets the condition on it."""
        return self.is_for_every_principal or (principal is not None and _match(self.principal, principal))

    def _is_for_own_name(self, own_name: str | None) -> bool:
        return own_name is not None and self.reads_own_names and _match(self.tool, own_name)

    @property
    def reads_own_names(self) -> bool:
        """Whether the rule is also for the names by which sources know their tools.

        A rule that allows trusts only the sources that it names. If it named none, any server could have its tool
        allowed by giving it the name of another server's tool.
        """
        return self.then != "allow" or self.names_sources

    @property
    def names_sources(self) -> bool:
        """Whether the rule has a condition on the source."""
        return all(pattern.strip("*?") for pattern in self.source)

    @property
    def spelled_names(self) -> tuple[str, ...]:
        """The names of tools that the rule spells out, without wildcards."""
        return tuple(pattern for pattern in self.tool if not WILDCARD.search(pattern))

    def _is_for_annotations(self, annotations: ToolAnnotations) -> bool:
        return all(getattr(annotations, hint) is value for hint, value in self.annotations.items())

    def covers(self, later: Rule) -> bool:
        """Return whether the rule certainly decides every call that `later` is for by the names of offered tools."""
        return (
            self._holds_whenever(later)
            and _cover(self.tool, later.tool)
            and _cover(self.source, later.source)
            and _cover(self.agent, later.agent)
            and _cover(self.principal, later.principal)  # only `*` covers `*`, which is for runs without a principal
            and all(
                key in later.attributes and all(_is_among(value, values) for value in later.attributes[key])
                for key, values in self.attributes.items()
            )
            and self.annotations.items() <= later.annotations.items()
        )

    def _holds_whenever(self, later: Rule) -> bool:
        """Return whether no call gets past the `where` of this rule to be decided, or denied, by that of `later`."""
        if self.where is None:
            return True
        if not (isinstance(self.where, ArgumentConditions) and isinstance(later.where, ArgumentConditions)):
            return False
        # a call that lacks a value gets past a rule that allows, and is denied by a rule that does not
        if self.then == "allow" and later.then != "allow" and not later.where.require_values_of(self.where):
            return False
        return self.where.are_implied_by(later.where)


def _is_no_name(pattern: str) -> bool:
    """Return whether a pattern has what no name of a tool has, such as the comma of a list that was meant."""
    return "," in pattern or pattern != pattern.strip() or not pattern.isprintable()


def _match(patterns: Iterable[str], text: str) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)


def _cover(patterns: Iterable[str], others: Iterable[str]) -> bool:
    """Return whether every text that matches one of `others` certainly matches one of `patterns`."""
    return all(any(_covers(pattern, other) for pattern in patterns) for other in others)


def _covers(pattern: str, other: str) -> bool:
    """Return whether every text that matches `other` certainly matches `pattern`."""
    if pattern in ("*", other):
        return True
    if not WILDCARD.search(other):
        return fnmatchcase(other, pattern)
    prefix = pattern[:-1]  # `get_*` covers `get_user_?`
    return pattern.endswith("*") and not WILDCARD.search(prefix) and literal_ends(other)[0].startswith(prefix)


def literal_ends(pattern: str) -> tuple[str, str]:
    """Return the text before the first wildcard of a pattern and the text after the last one; a name twice if none."""
    begin = WILDCARD.search(pattern)
    if begin is None:
        return pattern, pattern
    return pattern[: begin.start()], pattern[max(pattern.rfind(wildcard) for wildcard in "*?]") + 1 :]


def _values(value: object) -> tuple[Any, ...]:
    values = tuple(value) if isinstance(value, list | tuple | set | frozenset) else (value,)
    for item in values:
        expect("attributes", item, (str, bool, int, float), "a str, bool, int or float, or a list of them")
    return values


def _is_among(value: object, accepted: Sequence[Any]) -> bool:
    """Return whether a value, or one item of a sequence, is accepted. `True` is not `1`."""
    if isinstance(value, list | tuple):
        return any(_is_among(item, accepted) for item in value)
    return any(isinstance(value, bool) is isinstance(other, bool) and value == other for other in accepted)
