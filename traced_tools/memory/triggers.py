"""Triggers of compactions: they decide when a model is sent too much of a conversation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Final

from traced_tools.core.checks import expect_whole
from traced_tools.errors import ConfigurationError
from traced_tools.memory.view import MemoryView

if TYPE_CHECKING:
    from traced_tools.memory.session import MemorySession
    from traced_tools.run.context import RunContext


_RELIEVED: Final = 0.7
"""The share of the tokens at which a trigger fires that a compaction leaves at most, if it can."""


class CompactionTrigger(ABC):
    """Decides when a view is compacted. A subclass sets `name` and implements `fires`, a plain method.

    What `fires` raises fails the run.

    Attributes:
        name: the trigger's name in the log and in telemetry. It is a metric label, so use a fixed name.
    """

    name: ClassVar[str]

    @abstractmethod
    def fires(self, view: MemoryView, session: MemorySession) -> bool:
        """Return whether to compact `view`; called before each call of the model, and after each strategy.

        Args:
            view: what the model would be sent.
            session: the run's access to the conversation.
        """

    def is_relieved(self, view: MemoryView, session: MemorySession) -> bool:
        """Return whether a compaction that this trigger caused has left out enough; by default, if it does not fire.

        A trigger that measures tokens leaves room here, so that the next compaction is not due at once.
        """
        return not self.fires(view, session)


class Tokens(CompactionTrigger):
    """Fires when a view has `tokens` tokens or more: as the provider reported them, else estimated.

    The compaction goes on until the view has at most 70% of them.
    """

    name = "tokens"

    def __init__(self, tokens: int) -> None:
        expect_whole("tokens", tokens, 1)
        self.tokens = tokens

    def fires(self, view: MemoryView, session: MemorySession) -> bool:
        """Return whether the view has too many tokens."""
        return view.tokens().tokens >= self.tokens

    def is_relieved(self, view: MemoryView, session: MemorySession) -> bool:
        """Return whether the view has room for more tokens."""
        return view.tokens().tokens <= _RELIEVED * self.tokens


class Turns(CompactionTrigger):
    """Fires when a view has more than `turns` turns before the turn of the run."""

    name = "turns"

    def __init__(self, turns: int) -> None:
        expect_whole("turns", turns, 1)
        self.turns = turns

    def fires(self, view: MemoryView, session: MemorySession) -> bool:
        """Return whether the view has too many turns."""
        return len(view.turns) > self.turns


class WindowShare(CompactionTrigger):
    """Fires when a view has a share of the model's context window, or more.

    The compaction goes on until the view has at most 70% of that.

    Args:
        share: the share, above 0 and below 1. Leave room for the answer, and for tool results before the next call.
        window: the context window in tokens; None for `context_window` of the model or, without that, what the package
            `genai-prices` lists for the model.

    In a run, it raises `ConfigurationError` if the context window is not known.
    """

    name = "window_share"

    def __init__(self, share: float, window: int | None = None) -> None:
        if isinstance(share, bool) or not isinstance(share, int | float):
            raise TypeError(f"share must be a number, not {type(share).__name__}")
        if not 0 < share < 1:
            raise ValueError(f"share must be above 0 and below 1; it is {share}")
        if window is not None:
            expect_whole("window", window, 1)
        self.share = share
        self.window = window

    def fires(self, view: MemoryView, session: MemorySession) -> bool:
        """Return whether the view takes too much of the context window."""
        return view.tokens().tokens >= self._most(session)

    def is_relieved(self, view: MemoryView, session: MemorySession) -> bool:
        """Return whether the view has room for more tokens."""
        return view.tokens().tokens <= _RELIEVED * self._most(session)

    def _most(self, session: MemorySession) -> float:
        return self.share * (self.window or _context_window(session.run))


def _context_window(run: RunContext) -> int:
    window = None if run.context_window is None else run.context_window()
    if window is None:
        raise ConfigurationError(
            "WindowShare needs the context window of the model, which is not known: "
            "pass window= to WindowShare, or context_window= to the model"
        )
    return window
