"""Sanitizing of external values: the cardinality of labels, the length of ids, and the range of numbers."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from traced_tools.core.enums import DECISIONS, FINISH_REASONS, REASON_CODES, STANDING_APPROVAL
from traced_tools.core.messages import Usage
from traced_tools.observe import names

if TYPE_CHECKING:
    from traced_tools.observe.attributes import Attributes

_MAX_ID_LENGTH: Final = 256
_MOST_TOKENS: Final = 2**53
_INT64: Final = range(-(2**63), 2**63)
_UNLIMITED: Final = frozenset({names.CANCELLED, names.TIMEOUT, *DECISIONS})
_COUNTS: Final = tuple(Usage.model_fields)
_SEEN: defaultdict[tuple[str, str], set[str]] = defaultdict(set)


def limit_cardinality(label: str, owner: str, value: str, most: int = names.MAX_LABEL_VALUES) -> str:
    """Return `value`, or `_OTHER` once `owner` has used `most` distinct values for `label`.

    This limits the number of metric series in a process.

    Args:
        label: the attribute that gets the value.
        owner: the source of the value, such as the tool that failed.
        value: for example the class of an error or a name in a server's response.
        most: the maximum number of distinct values for each label and owner.
    """
    values = _SEEN[label, owner]
    if value in values or value in _UNLIMITED:
        return value
    if len(values) >= most:
        return names.OTHER
    values.add(value)
    return value


def safe_identifier(text: str) -> str:
    """Return an id or name from outside, or `_OTHER` if it is long, unprintable or contains spaces."""
    is_identifier = len(text) <= _MAX_ID_LENGTH and text.isprintable() and " " not in text
    return text if is_identifier else names.OTHER


def safe_person_name(name: str) -> str:
    """Return the name of a person, service or agent, or `_OTHER` if it is long or unprintable; spaces are allowed."""
    return name if len(name) <= _MAX_ID_LENGTH and name.isprintable() else names.OTHER


def agent_name_label(name: str) -> str:
    """Return an agent's name as a metric label; the number of agents in a process is limited."""
    return limit_cardinality(names.AGENT_NAME, "", safe_person_name(name), names.MAX_AGENTS)


def agent_version_label(version: str, agent: str) -> str:
    """Return a version of an agent as a metric label; the number of versions of an agent in a process is limited."""
    return limit_cardinality(names.AGENT_VERSION, agent, version, names.MAX_VERSIONS)


def reason_code_label(code: str, tool: str) -> str:
    """Return a reason code as a metric label. The package's own codes are unlimited; others are limited per tool.

    The code of a standing approval is without the id of a call, which would make a series per approval.
    """
    code = safe_identifier(code)
    if code.startswith(f"{STANDING_APPROVAL}:"):
        return STANDING_APPROVAL
    return code if code in REASON_CODES else limit_cardinality(names.REASON_CODE, tool, code)


def known_finish_reason(value: str) -> str:
    """Return a finish reason, or `_OTHER` if the GenAI conventions don't list it."""
    return value if value in FINISH_REASONS else names.OTHER


def drop_invalid_counts(usage: Usage | None) -> Usage | None:
    """Return `usage` without invalid counts: negative, or 2**53 and above.

    A count beyond 64 bits would make the export of its whole batch fail.
    """
    if usage is None or not has_invalid_counts(usage):
        return usage
    fields = [(field, getattr(usage, field)) for field in _COUNTS]
    return Usage(**{field: count for field, count in fields if count is not None and 0 <= count < _MOST_TOKENS})


def has_invalid_counts(usage: Usage) -> bool:
    """Whether a usage has a count that is negative, or 2**53 or above."""
    for field in _COUNTS:
        count = getattr(usage, field)
        if count is not None and not 0 <= count < _MOST_TOKENS:
            return True
    return False


def drop_oversized_ints(attributes: Attributes) -> Attributes:
    """Return the attributes without integers beyond 64 bits, which OTLP cannot encode."""
    return {name: value for name, value in attributes.items() if not isinstance(value, int) or value in _INT64}
