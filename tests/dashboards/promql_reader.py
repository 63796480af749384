"""Reads what a PromQL expression selects and groups by. It trusts the syntax, which another test checks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^()]*)\)")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"(\d+)"')
_SELECTOR = re.compile(
    r"(?:(?P<name>[a-zA-Z_:][\w:]*)\s*)?\{(?P<matchers>[^{}]*)\}(?:\[(?P<window>[^\]]*)\])?"
    r"|(?<![\w.:])(?P<bare>[a-zA-Z_:][\w:]*)(?![\w:]|\s*\()(?:\[(?P<bare_window>[^\]]*)\])?"
)
_MADE = re.compile(r',\s*"(\d+)"(?:\s*,\s*"\d+")+\s*\)')
_SPECIAL: Final = {"and", "or", "unless", "bool", "inf", "nan", "offset"}


@dataclass(frozen=True)
class Selector:
    """Series that an expression selects.

    Attributes:
        names: the names of the metrics, or one regular expression.
        labels: the operator and the value that each label is compared with.
        window: the range in brackets; None of an instant vector.
        before: the expression before the selector.
        after: the expression after the selector.
    """

    names: tuple[str, ...]
    labels: dict[str, tuple[str, str]]
    window: str | None
    before: str
    after: str


@dataclass(frozen=True)
class Expression:
    """A PromQL expression.

    Attributes:
        text: the expression.
    """

    text: str

    @property
    def selectors(self) -> list[Selector]:
        """All selectors."""
        plain, strings = text, _ = self._without_strings()
        # Labels of groupings, offsets and variables are no metrics. Blanks keep the places of all else.
        for pattern in (_GROUPING, re.compile(r"\boffset\s+\S+?(?=[\s)]|$)"), re.compile(r"\$\w+(?![^\[]*\])")):
            plain = pattern.sub(lambda found: " " * len(found[0]), plain)
        return [
            self._selector(found, text, strings) for found in _SELECTOR.finditer(plain) if found["bare"] not in _SPECIAL
        ]

    @property
    def groupings(self) -> list[set[str]]:
        """The labels of each `by`, `on` and the like."""
        plain, _ = self._without_strings()
        return [set(re.findall(r"\w+", found[1])) for found in _GROUPING.finditer(plain)]

    @property
    def made_labels(self) -> set[str]:
        """The labels that the expression makes itself, with `label_replace` or `label_join`."""
        plain, strings = self._without_strings()
        return {strings[int(index)] for index in _MADE.findall(plain)}

    def _without_strings(self) -> tuple[str, list[str]]:
        """Return the text with the number of each string in its place, and the strings."""
        strings: list[str] = []

        def number(found: re.Match[str]) -> str:
            strings.append(found[0][1:-1])
            return f'"{len(strings) - 1}"'

        return _STRING.sub(number, self.text), strings

    def _selector(self, found: re.Match[str], text: str, strings: list[str]) -> Selector:
        labels = {
            label: (operator, strings[int(index)])
            for label, operator, index in _MATCHER.findall(found["matchers"] or "")
        }
        name = found["name"] or found["bare"]
        if name is None or name in _SPECIAL:
            start, pattern = found.start("matchers") - 1, labels["__name__"][1]
            names = tuple(pattern.split("|")) if re.fullmatch(r"[\w:|]+", pattern) else (pattern,)
        else:
            start, names = found.start(), (name,)
        window = found["window"] or found["bare_window"]
        return Selector(names, labels, window, text[:start], text[found.end() :])
