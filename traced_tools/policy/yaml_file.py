"""Reads a policy from a YAML file. Every error has the file, the line and what to do."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from traced_tools.core.enums import POLICY_DECISIONS, PolicyDecision
from traced_tools.errors import ConfigurationError
from traced_tools.policy.conditions import ArgumentConditions, make_check, path_of
from traced_tools.policy.digest import digest_of
from traced_tools.policy.rule import Rule
from traced_tools.policy.rule_index import RuleIndex

if TYPE_CHECKING:
    from collections.abc import Iterator

    from yaml import Node

_POLICY: Final = ("default", "rules")
_RULE: Final = tuple(field.name for field in fields(Rule))
_MOST_ALIASED: Final = 1_000_000
"""How many characters of values the aliases of a file may add to it."""
_TAG: Final = "tag:yaml.org,2002:"


def read_policy(path: Path) -> tuple[tuple[Rule, ...], PolicyDecision, str]:
    """Return the rules, the default and the digest of a policy file.

    Raises:
        ConfigurationError: if the file cannot be read or is invalid.
    """
    try:
        import yaml
    except ModuleNotFoundError:
        raise ConfigurationError(
            "policy files need an extra: pip install 'traced_tools[policy]', or build a Policy of Rule objects"
        ) from None
    data = read_bytes(path)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: the policy cannot be read: it is not UTF-8") from None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is None:
            raise ConfigurationError(
                f"{path}: the policy is empty: add `default: deny` and `rules:` with at least one rule"
            )
        return *_File(path, _MOST_ALIASED + len(text)).policy(root), digest_of(data)
    except RecursionError:
        raise ConfigurationError(f"{path}: the policy is nested too deeply, or an anchor contains itself") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "it has an invalid character"
        where = "" if mark is None else f", line {mark.line + 1}"
        if "alias" in problem or "alias" in (getattr(error, "context", None) or ""):
            problem = "a value begins with *, which YAML reads as an alias: put a pattern that begins with * in quotes"
        raise ConfigurationError(f"{path}{where}: the policy is not valid YAML: {problem}") from None


def read_bytes(path: Path) -> bytes:
    """Return the contents of a policy file; raise `ConfigurationError` if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise ConfigurationError(f"{path}: the policy cannot be read: {why}") from None


@dataclass(slots=True)
class _File:
    """The file that is read, for its errors.

    Attributes:
        path: the file.
        remaining: how many characters of values may still be read. Aliases can stand for more than any memory holds.
    """

    path: Path
    remaining: int

    def policy(self, root: Node) -> tuple[tuple[Rule, ...], PolicyDecision]:
        nodes_by_key = self._fields(root, _POLICY, "the policy")
        default: Any = "deny"
        if "default" in nodes_by_key and (default := self._value(nodes_by_key["default"])) not in POLICY_DECISIONS:
            self._fail(nodes_by_key["default"], f"default must be one of {', '.join(POLICY_DECISIONS)}")
        if "rules" not in nodes_by_key:
            self._fail(root, "the policy has no rules: add `rules:` with at least one rule")
        nodes = self._items(nodes_by_key["rules"], "rules")
        if not nodes:
            self._fail(nodes_by_key["rules"], "rules is empty: add at least one rule")
        rules: list[Rule] = []
        index = RuleIndex()
        for node in nodes:
            rules.append(self._rule(node))
            if (problem := index.add(rules[-1])) is not None:
                self._fail(node, problem)
        return tuple(rules), default

    def _rule(self, node: Node) -> Rule:
        nodes_by_key = self._fields(node, _RULE, "a rule")
        for required in ("id", "then"):
            if required not in nodes_by_key:
                self._fail(node, f"the rule has no {required!r}: add `{required}:`")
        arguments: dict[str, Any] = {"then": "deny"}
        for name in sorted(nodes_by_key, key=_RULE.index):  # the id first, which other errors quote
            if name == "where":
                arguments[name] = self._conditions(nodes_by_key[name])
                continue
            arguments[name] = self._value(nodes_by_key[name])
            with self._at(nodes_by_key[name]):  # checked one by one, so that an error has the line of its field
                Rule(**arguments)
        return Rule(**arguments)

    def _conditions(self, node: Node) -> ArgumentConditions:
        conditions: dict[str, dict[str, Any]] = {}
        self._fields(node, None, "where")
        for key, operators in node.value:
            argument = key.value
            with self._at(key):
                path_of(argument)
            conditions[argument] = {}
            for operator, operand in self._fields(operators, None, f"the conditions of {argument!a}").items():
                conditions[argument][operator] = self._value(operand)
                with self._at(operand):
                    make_check(operator, conditions[argument][operator])
            if not conditions[argument]:
                self._fail(operators, f"{argument!a} has no condition: add one, such as `eq: 1`")
        if not conditions:
            self._fail(node, "where is empty: add a condition, or delete the key")
        return ArgumentConditions(conditions)

    def _fields(self, node: Node, accepted_keys: Iterable[str] | None, what: str) -> dict[str, Node]:
        """Return the values of a mapping by key; `known` are the accepted keys, None for any."""
        if node.tag != f"{_TAG}map":
            self._fail(node, f"{what} must be a mapping of keys to values, not {_kind(node)}")
        nodes_by_key: dict[str, Node] = {}
        for key, value in node.value:
            if key.tag != f"{_TAG}str":
                self._fail(key, f"a key of {what} must be text, not {_kind(key)}: put it in quotes")
            if accepted_keys is not None and key.value not in accepted_keys:
                self._fail(key, f"unknown key {key.value[:64]!a} in {what}: use {', '.join(accepted_keys)}")
            if key.value in nodes_by_key:
                self._fail(key, f"the key {key.value[:64]!a} is there twice: delete one")
            self._count(key)
            nodes_by_key[key.value] = value
        return nodes_by_key

    def _items(self, node: Node, what: str) -> list[Node]:
        if node.tag != f"{_TAG}seq":
            self._fail(node, f"{what} must be a list, not {_kind(node)}: begin each item with `-`")
        items: list[Node] = node.value
        return items

    def _value(self, node: Node) -> Any:
        """Return a JSON value. Scalars that YAML reads in ways of its own, such as `NO` as false, are refused."""
        kind = str(node.tag).removeprefix(_TAG)
        self._count(node)
        if kind == "seq":
            return [self._value(item) for item in node.value]
        if kind == "map":
            return {key: self._value(member) for key, member in self._fields(node, None, "a value").items()}
        if kind == "str":
            return node.value
        if kind == "null":
            return None
        if kind in ("bool", "int", "float"):
            with suppress(ValueError):
                return json.loads(node.value.lower())
        self._fail(node, f"{node.value[:64]!a} is {_kind(node)} in YAML: put it in quotes, or write it as JSON does")

    def _count(self, node: Node) -> None:
        """Count the characters of a text, or the items of a list or mapping, and one more."""
        self.remaining -= len(node.value) + 1
        if self.remaining < 0:
            self._fail(
                node, f"the aliases of the file stand for more than {_MOST_ALIASED:,} characters: write fewer values"
            )

    @contextmanager
    def _at(self, node: Node) -> Iterator[None]:
        """Add the file and the line to errors."""
        try:
            yield
        except (TypeError, ValueError) as error:
            problem = str(error)
        else:
            return
        self._fail(node, problem)

    def _fail(self, node: Node, problem: str) -> NoReturn:
        raise ConfigurationError(f"{self.path}, line {node.start_mark.line + 1}: {problem}")


_KINDS: Final[Mapping[str, str]] = {
    "seq": "a list",
    "map": "a mapping",
    "str": "text",
    "null": "nothing",
    "bool": "true or false",
    "int": "a number",
    "float": "a number",
}


def _kind(node: Node) -> str:
    short = str(node.tag).removeprefix(_TAG)
    return _KINDS.get(short, f"a {short}"[:64])
