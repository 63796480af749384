"""Who asks: the principal of a run, and the actors that stand between the principal and the run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from traced_tools.core.checks import expect
from traced_tools.core.readable import is_seen

MOST_PRINCIPAL: Final = 256
"""The maximum length of a principal in characters."""
MOST_ACTORS: Final = 16
"""The maximum number of entries in an actor chain."""
_FIRST: Final = 8
_OMITTED: Final = "..."
_MOST_NAME: Final = 128


def check_principal(argument: str, principal: object) -> None:
    """Raise `TypeError` or `ValueError` unless `principal` is None or a valid name; the message never has the value.

    Memory keeps the same rule for the owners of conversations.
    """
    expect(argument, principal, (str, type(None)), "a str or None")
    if not isinstance(principal, str):
        return
    if not 1 <= len(principal) <= MOST_PRINCIPAL:
        raise ValueError(f"{argument} must have 1 to {MOST_PRINCIPAL} characters; it has {len(principal)}")
    if not principal.strip():
        raise ValueError(f"{argument} must not be blank: it names who asks; pass None if nobody is known")
    if not principal.isascii() and any("\ud800" <= character <= "\udfff" for character in principal):
        raise ValueError(f"{argument} must be text that UTF-8 can encode: replace its lone surrogates")


def actor(kind: Literal["agent", "tool", "client"], name: str) -> str:
    """Return the entry of an actor chain, with a printable name of at most 128 characters."""
    return f"{kind}:{_printable(name[:_MOST_NAME])}"


def actor_chain(*actors: str) -> tuple[str, ...]:
    """Return actors, the outermost first, as a chain: of more than 16, the first 8 and the last 7."""
    if len(actors) <= MOST_ACTORS:
        return actors
    return (*actors[:_FIRST], _OMITTED, *actors[_FIRST + 1 - MOST_ACTORS :])


def checked_actors(actors: Iterable[str]) -> tuple[str, ...]:
    """Return the chain of actors that an application passes, printable and of bounded length.

    Raises:
        TypeError: for anything but a sequence of str.
    """
    names = () if isinstance(actors, str) or not isinstance(actors, Iterable) else tuple(actors)
    if isinstance(actors, str) or not all(isinstance(name, str) for name in names):
        raise TypeError("actors must be a sequence of str, such as ['agent:planner', 'tool:ask_billing']")
    return actor_chain(*(_printable(name[: _MOST_NAME + len("client:")]) for name in names))


def _printable(text: str) -> str:
    """Return a text with `?` for each character that hides, moves or turns what is around it."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(character if is_seen(character) else "?" for character in text)
