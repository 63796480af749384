"""Checks of the parts that a client depends on, such as its model, its stores and its servers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, Protocol, runtime_checkable

from traced_tools.core.frozen import frozen


class PartCheck(NamedTuple):
    """A check of a part.

    Args:
        part: the kind of the part and its name, such as `mcp: weather`.
        run: a flow that raises an error if the part cannot be used. It spends no tokens and changes no data.
    """

    part: str
    run: Callable[[], Awaitable[object]]


@runtime_checkable
class Checkable(Protocol):
    """A model, an advisor, a provider of tools or a store with parts that can be checked."""

    def checks(self) -> Iterable[PartCheck]:
        """Return the checks of the parts."""


@frozen
class CheckedPart:
    """What the check of a part has found.

    Attributes:
        part: the kind of the part and its name.
        problem: why the part cannot be used, without contents; None if it can be.
    """

    part: str
    problem: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the part can be used."""
        return self.problem is None
