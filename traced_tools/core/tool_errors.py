"""What happens when a tool fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from traced_tools.core.checks import expect, expect_callable
from traced_tools.errors import InvalidArguments


@dataclass(frozen=True)
class ToolErrors:
    """What happens when a tool fails: the model is told and the loop goes on, or the run fails.

    It is one policy for tools of every kind and for everything that can go wrong with a call: an exception of the
    tool, a time-out (`ToolTimeout`), arguments that do not fit (`InvalidArguments`).

    Args:
        raise_on: exception classes that fail the run, subclasses included. The run raises a `ToolExecutionError`, never
            the class itself, so `except PermissionError` around a run catches nothing. The tool's exception is on
            `.original` of the error, and not on `__cause__`, which loggers and spans print.
        always_raise: every failure does, in the same way.
        unknown_tool: whether a name that is no tool is answered to the model (`answer`) or fails the run (`raise`).
        message: given the tool's name and the exception, returns what the model reads instead of the default text.
    """

    raise_on: tuple[type[Exception], ...] = ()
    always_raise: bool = False
    unknown_tool: Literal["answer", "raise"] = "answer"
    message: Callable[[str, Exception], str] | None = None

    def __post_init__(self) -> None:
        kinds = self.raise_on if isinstance(self.raise_on, tuple) else (self.raise_on,)
        if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
            raise TypeError("raise_on must be a tuple of exception classes")
        if not isinstance(self.always_raise, bool):
            raise TypeError("always_raise must be True or False")
        if self.unknown_tool not in ("answer", "raise"):
            raise ValueError("unknown_tool must be 'answer' or 'raise'")
        expect_callable("message", self.message)

    def raises(self, error: Exception) -> bool:
        """Whether `error` fails the run."""
        return self.always_raise or isinstance(error, self.raise_on)

    def text(self, tool: str, error: Exception) -> str:
        """Return what the model reads about `error`."""
        if self.message is not None:
            text = self.message(tool, error)
            expect("what ToolErrors.message returns", text, str, "a str")
            return text
        if isinstance(error, InvalidArguments):
            return f"The arguments are invalid: {error.problems}. Correct them and call the tool again."
        words = _words(error)
        return f"The tool {tool} failed: {type(error).__name__}" + (f": {words[:2000]}" if words else "")


def _words(error: Exception) -> str:
    try:
        return str(error).strip()
    except Exception:  # an exception may be unable to say what it is
        return ""


ANSWER_ERRORS = ToolErrors()
