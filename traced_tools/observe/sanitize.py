"""Bounds for what comes from outside: words of labels, the length of identifiers, and numbers that can be carried."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from traced_tools.core.enums import DECISIONS, FINISH_REASONS, REASON_CODES
from traced_tools.core.messages import Usage
from traced_tools.observe import names

if TYPE_CHECKING:
    from traced_tools.observe.scope import Attributes

_MAX_ID_LENGTH: Final = 256
_MOST_TOKENS: Final = 2**53
_INT64: Final = range(-(2**63), 2**63)
_OF_OURS: Final = frozenset({names.CANCELLED, names.TIMEOUT, *DECISIONS})
_COUNTS: Final = tuple(Usage.model_fields)
_SEEN: defaultdict[tuple[str, str], set[str]] = defaultdict(set)


def limit_cardinality(label: str, owner: str, word: str, most: int = names.MAX_LABEL_VALUES) -> str:
    """Return `word`, or `_OTHER` once its owner has shown too many: a label must stay bounded.

    Args:
        label: the attribute it is for.
        owner: what shows it, such as the tool that failed.
        word: the class of an error, or a name that a server answered with.
        most: how many words the owner may show.
    """
    seen = _SEEN[label, owner]
    if word in seen or word in _OF_OURS:
        return word
    if len(seen) >= most:
        return names.OTHER
    seen.add(word)
    return word


def safe_identifier(text: str) -> str:
    """Return an id or a name that somebody else chose, or `_OTHER` for what can be none: a long or spaced-out text."""
    is_one = len(text) <= _MAX_ID_LENGTH and text.isprintable() and " " not in text
    return text if is_one else names.OTHER


def safe_person_name(name: str) -> str:
    """Return the name of a person or service as the application gave it, or `_OTHER` if it is not one line of text."""
    return name if len(name) <= _MAX_ID_LENGTH and name.isprintable() else names.OTHER


def reason_code_label(code: str, tool: str) -> str:
    """Return a reason code as a metric label. Codes of this package are always kept; others are limited per tool."""
    code = safe_identifier(code)
    return code if code in REASON_CODES else limit_cardinality(names.REASON_CODE, tool, code)


def known_finish_reason(word: str) -> str:
    """Return why a model stopped, or `_OTHER` for a word that is not in the conventions' list."""
    return word if word in FINISH_REASONS else names.OTHER


def drop_invalid_counts(usage: Usage | None) -> Usage | None:
    """Return a usage without the counts that nobody can have counted: one spoils all that is sent with it."""
    if usage is None or not has_invalid_counts(usage):
        return usage
    fields = [(field, getattr(usage, field)) for field in _COUNTS]
    return Usage(**{field: count for field, count in fields if count is not None and 0 <= count < _MOST_TOKENS})


def has_invalid_counts(usage: Usage) -> bool:
    """Whether a usage has a count that cannot be."""
    for field in _COUNTS:
        count = getattr(usage, field)
        if count is not None and not 0 <= count < _MOST_TOKENS:
            return True
    return False


def drop_oversized_ints(attributes: Attributes) -> Attributes:
    """Return the attributes without numbers of more than 64 bits, which OTLP does not have."""
    return {name: value for name, value in attributes.items() if not isinstance(value, int) or value in _INT64}
