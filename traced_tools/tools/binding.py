"""The arguments of one tool call: what the tool gets, and what advisors and approvers see of it."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from traced_tools.core.canonical import canonical_text
from traced_tools.core.unwrapping import unwrap_arguments
from traced_tools.errors import InvalidArguments

if TYPE_CHECKING:
    from traced_tools.core.enums import Repair
    from traced_tools.tools.callback import Invocable
    from traced_tools.tools.schema.arguments import BoundArguments


class ArgumentBinding:
    """Binds texts to the arguments of one call, and shows them as canonical JSON.

    Each attempt gets new arguments, because a tool may change them. They are bound from the text that the shown ones
    were bound from: validating what a validator returned might change it once more.

    Args:
        tool: how the loop runs the tool.

    Attributes:
        failure: what a custom validator raised; it counts as the tool's error, so `take` raises it.
    """

    __slots__ = ("_bound", "_bound_for", "_sources", "_tool", "failure")

    def __init__(self, tool: Invocable) -> None:
        self._tool = tool
        self._bound: BoundArguments | None = None
        self._bound_for = ""
        self._sources: dict[str, str] = {}
        self.failure: Exception | None = None

    def bind(self, source: str, previous: str | None = None) -> tuple[Repair, ...]:
        """Validate a text for the next attempt, and return its repairs.

        Args:
            source: the text.
            previous: the canonical text that advisors or approvers have seen of the call; None if they have seen none.
                The tool gets these arguments, unless they are no longer valid. A default, or a validator, may give
                others each time, such as a new id.

        Raises:
            InvalidArguments: if the text is invalid.
        """
        self._bound, self._bound_for = None, source
        try:
            self._bound = bound = self._tool.bind(source)
        except InvalidArguments:
            raise
        except Exception as error:
            self.failure = error
            return ()
        with suppress(Exception):  # a custom validator may raise anything
            if previous is not None and not self._shows(bound, previous):
                former = self._tool.bind(previous)
                if self._shows(former, previous):
                    self._bound, self._bound_for = former, previous
        return bound.repairs

    def shown(self) -> tuple[str, dict[str, Any] | None]:
        """Return what the tool will get: the canonical text, and the values unless a validator failed."""
        source, values = self._bound_for, None
        if self._bound is not None:
            values = self._tool.as_json(self._bound)
            text = canonical_text(values)
        else:
            text, _ = unwrap_arguments(source)
            with suppress(ValueError, RecursionError):
                text = canonical_text(json.loads(text))
        self._sources[text], self._bound_for = source, text
        return text, values

    def take(self, text: str, *, as_shown: bool) -> BoundArguments:
        """Return the arguments for one attempt.

        Args:
            text: the text that was bound or shown.
            as_shown: whether the arguments must be those that were shown as `text`.

        Raises:
            InvalidArguments: if a validator refuses the arguments this time.
            Exception: what a custom validator raises, or `RuntimeError` if validation gives other values than before.
        """
        bound, self._bound = self._bound, None
        if bound is not None and text == self._bound_for:
            return bound
        bound = self._tool.bind(self._sources.get(text, text))
        if not as_shown or self._shows(bound, text):
            return bound
        bound = self._tool.bind(text)  # such as a new default from a factory: the tool gets the values that were shown
        if self._shows(bound, text):
            return bound
        raise self.failure or RuntimeError("validating the arguments again gave other values than the advisors saw")

    def _shows(self, bound: BoundArguments, text: str) -> bool:
        return canonical_text(self._tool.as_json(bound)) == text
