"""Bounds for words that come from outside: how many a label may show, and how long an identifier may be."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from traced_tools.telemetry import names
from traced_tools.telemetry.words import DECISIONS, FINISH_REASONS

LONGEST: Final = 256
_OF_OURS: Final = frozenset({names.CANCELLED, names.TIMEOUT, *DECISIONS})
_SEEN: defaultdict[tuple[str, str], set[str]] = defaultdict(set)


def bounded(label: str, owner: str, word: str) -> str:
    """Return `word`, or `_OTHER` once its owner has shown too many: a label must stay bounded.

    Args:
        label: the attribute it is for.
        owner: what shows it, such as the tool that failed.
        word: the class of an error, or a name that a server answered with.
    """
    seen = _SEEN[label, owner]
    if word in seen or word in _OF_OURS:
        return word
    if len(seen) >= names.MOST_WORDS_OF_A_LABEL:
        return names.OTHER
    seen.add(word)
    return word


def identifier(text: str) -> str:
    """Return an id or a name that somebody else chose, or `_OTHER` for what can be none: a long or spaced-out text."""
    is_one = len(text) <= LONGEST and text.isprintable() and " " not in text
    return text if is_one else names.OTHER


def finish_reason(word: str) -> str:
    """Return why a model stopped, or `_OTHER` for a word that is not in the conventions' list."""
    return word if word in FINISH_REASONS else names.OTHER
