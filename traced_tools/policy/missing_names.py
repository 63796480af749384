"""The names of tools that rules spell out, and that no tool of their sources has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from traced_tools.core.tool_input import INPUT_METHODS
from traced_tools.policy.rule import Rule
from traced_tools.tools.toolset import SourceNames


@dataclass(frozen=True, slots=True)
class MissingName:
    """A name in a rule that no tool of the rule's sources has. The rule is for no call of a tool of that name.

    Attributes:
        rule: the id of the rule.
        name: the name.
        sources: the sources whose tools are known and that the rule is for.
        is_own_name: whether a server of these sources knows a tool by that name, and the rule does not read it.
    """

    rule: str
    name: str
    sources: tuple[str, ...]
    is_own_name: bool

    def __str__(self) -> str:
        where = " or ".join(map(repr, self.sources))
        if self.is_own_name:
            return (
                f"rule {self.rule!r} allows no call of the tool {self.name!r} of {where}, which is offered under "
                "another name: add the source to the rule, or use the offered name"
            )
        return f"rule {self.rule!r} is for the tool {self.name!r}, and no known tool of {where} has that name"


def missing_names(rules: Iterable[Rule], tools: Mapping[str, SourceNames]) -> Iterator[MissingName]:
    """Yield the names in rules that no tool of their sources has.

    Args:
        rules: the rules.
        tools: the names of the tools of each source that is known. A rule for other sources only is passed over.
    """
    for rule in rules:
        for name in rule.spelled_names:
            if name in INPUT_METHODS:  # a question of a server, which is in no list of tools
                continue
            sources = tuple(source for source in tools if rule.is_for_source(source))
            offered = any(name in tools[source].offered for source in sources)
            own = any(name in tools[source].own for source in sources)
            if sources and not offered and not (own and rule.reads_own_names):
                yield MissingName(rule.id, name, sources, own)
