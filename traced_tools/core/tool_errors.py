"""What happens when a tool fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from traced_tools.core.checks import expect, expect_callable
from traced_tools.core.conversation import UNKNOWN_OUTCOME
from traced_tools.core.result_conversion import ToolContent, truncate_content
from traced_tools.errors import InvalidArguments, McpError, ToolOutcomeUnknown

_MAX_TEXT = 2_000
"""Characters of an exception's text that the model reads."""


@dataclass(frozen=True)
class ToolErrors:
    """The policy for failing tools: the model reads the error and the loop goes on, or the run fails.

    It applies to all tools and to every kind of failure: an exception of the tool, a time-out (`ToolTimeout`), invalid
    arguments (`InvalidArguments`).

    Args:
        raise_on: exception classes that fail the run, including subclasses. The run raises `ToolExecutionError` and not
            the class itself, so `except PermissionError` around a run catches nothing. The error's `original` is the
            tool's exception. It is not the `__cause__`, because loggers and spans print causes.
        always_raise: whether every failure fails the run in this way.
        unknown_tool: what happens if the model calls a tool that does not exist: `answer` has the model read that,
            `raise` fails the run with `ToolNotFoundError`.
        message: takes the tool's name and the exception and returns the text that the model reads instead of the
            default text.
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
        """Return whether `error` fails the run."""
        return self.always_raise or isinstance(error, self.raise_on)

    def text(self, tool: str, error: Exception) -> str:
        """Return the text about `error` that the model reads."""
        if self.message is not None:
            text = self.message(tool, error)
            expect("what ToolErrors.message returns", text, str, "a str")
            return text
        if isinstance(error, InvalidArguments):
            return f"The arguments are invalid: {error.problems}. Correct them and call the tool again."
        if isinstance(error, McpError) and error.for_model is not None:
            return truncate_content(ToolContent(error.for_model), _MAX_TEXT).text
        if isinstance(error, ToolOutcomeUnknown):
            return f"{UNKNOWN_OUTCOME}{error}."
        try:
            text = str(error).strip()[:_MAX_TEXT]
        except Exception:  # `__str__` of an exception may raise
            text = ""
        return f"The tool {tool} failed: {type(error).__name__}" + (f": {text}" if text else "")


ANSWER_ERRORS = ToolErrors()
