"""Which contents may leave the process: none, until somebody asks for them.

Contents are arguments, results, messages, system instructions, tool definitions, reasons, texts and stack traces of
exceptions, and names of tools that the model made up. While they are not asked for, nothing here is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Literal

from traced_tools.core.checks import expect, expect_callable, expect_whole
from traced_tools.core.enums import CAPTURE_MODES, CaptureMode
from traced_tools.errors import ConfigurationError
from traced_tools.observe import names
from traced_tools.observe.settings import captured_by_environment, usable
from traced_tools.observe.truncation import Fitted, fitted, shortened

if TYPE_CHECKING:
    from traced_tools.observe.scope import Attributes
    from traced_tools.observe.subjects import ObservedTool

Redactor = Callable[[str, Any], Any]
"""Given the name of the attribute and its value as plain JSON; returns what may be told of it, None for nothing."""


@dataclass(frozen=True)
class ContentCapture:
    """Which contents are told, and how.

    Args:
        mode: `NO_CONTENT`, `SPAN_ONLY`, `EVENT_ONLY` or `SPAN_AND_EVENT`, the words of the variable
            `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`; small letters will do.
        redact: called with the attribute's name and its value before anything is attached, returns what may be told of
            it or None. The value is plain JSON and may be changed in place. What it raises drops the value.
        max_bytes: how much of one value is told; what is cut is marked `traced_tools.content.truncated`.

    Raises:
        ConfigurationError: for another word.
    """

    mode: CaptureMode
    redact: Redactor | None = field(default=None, repr=False)
    max_bytes: int = 8192

    def __post_init__(self) -> None:
        expect("mode", self.mode, str, f"one of {', '.join(CAPTURE_MODES)}")
        object.__setattr__(self, "mode", self.mode.upper())
        if self.mode not in CAPTURE_MODES:
            raise ConfigurationError(f"capture must be one of {', '.join(CAPTURE_MODES)}")
        expect_callable("redact", self.redact)
        if iscoroutinefunction(self.redact):
            raise TypeError("redact must be a plain function: drop `async`")
        expect_whole("max_bytes", self.max_bytes, 256)

    @property
    def on_spans(self) -> bool:
        """Whether spans carry content."""
        return self.mode in ("SPAN_ONLY", "SPAN_AND_EVENT")

    @property
    def on_events(self) -> bool:
        """Whether events carry content."""
        return self.mode in ("EVENT_ONLY", "SPAN_AND_EVENT")


def as_capture(capture: ContentCapture | str | None) -> ContentCapture | None:
    """Return what a setting means; raises `TypeError` or `ConfigurationError` for what is none."""
    expect("capture", capture, (ContentCapture, str, type(None)), "a ContentCapture, one of its modes, or None")
    return ContentCapture(capture) if isinstance(capture, str) else capture  # type: ignore[arg-type]  # it is checked there


_of_process: ContentCapture | None = None


def set_process_capture(capture: ContentCapture | str | None) -> None:
    """Set what holds for clients that do not say themselves; None leaves it to the environment."""
    global _of_process
    _of_process = as_capture(capture)


_redacting: ContextVar[bool] = ContextVar("traced_tools_redacting", default=False)


def _redacted(redact: Redactor, name: str, value: object) -> object:
    """Return what a redactor leaves of a value; a run that it makes itself tells no contents."""
    plain = [*value] if isinstance(value, Sequence) and not isinstance(value, str) else value
    token = _redacting.set(True)
    try:
        return redact(name, plain)
    finally:
        _redacting.reset(token)


def capture_in_force(own: ContentCapture | None) -> ContentCapture | None:
    """Return what is captured: what a client says, else the process, else the environment; None for nothing."""
    if _redacting.get():
        return None
    capture = own or _of_process or _by_environment()
    return capture if capture is not None and capture.mode != "NO_CONTENT" else None


def _by_environment() -> ContentCapture | None:
    mode: CaptureMode | None = usable(captured_by_environment, "no content is captured")
    return None if mode is None else ContentCapture(mode)


def may_capture(tool: ObservedTool | None) -> bool:
    """Whether a tool's arguments, results and errors may be captured: not if it is unknown or has `capture=False`."""
    return tool is not None and getattr(tool.metadata, "capture", False) is True


class RunContent:
    """What one run may tell.

    Args:
        capture: what is captured.
        failed: told of what could not be told of, and what raised, in words.
    """

    __slots__ = ("_told", "_withheld", "capture", "failed")

    def __init__(self, capture: ContentCapture, failed: Callable[[Exception, str], None]) -> None:
        self.capture = capture
        self.failed = failed
        self._told: set[str] = set()
        self._withheld: set[str] = set()

    def register_tools(self, tools: Iterable[ObservedTool]) -> None:
        """Take note of what the tools of the run say of themselves."""
        for tool in tools:
            (self._told if may_capture(tool) else self._withheld).add(tool.definition.name)

    def may_tell(self, tool: str) -> bool:
        """Whether arguments and results of a tool may be told; of one the run does not know, they may not."""
        return tool in self._told and tool not in self._withheld

    @property
    def has_silent_tools(self) -> bool:
        """Whether there is a tool of whose arguments and results nothing may be told.

        Any exception of the run may then quote them, so no text of one is told but of a tool's that may be.
        """
        return bool(self._withheld)

    def may_capture_answer(self, stop_reason: str, tool_calls: int) -> bool:
        """Whether a run's answer may be captured: not if it may be the result of a tool with capture disabled.

        Args:
            stop_reason: why the run ended.
            tool_calls: how many calls the model asked for.
        """
        is_result = stop_reason == "return_direct" or (stop_reason == "advisor" and tool_calls > 0)
        return not (is_result and self.has_silent_tools)


Makers = Mapping[str, Callable[[], object]]
"""What makes the value of each attribute that may be told, None for nothing."""


class Contents:
    """The contents of one span and of its events: each made when it is first asked for, redacted, and cut to size.

    Args:
        content: what the run may tell.
        makers: what makes each.
    """

    __slots__ = ("_content", "_made", "_makers")

    def __init__(self, content: RunContent, makers: Makers) -> None:
        self._content = content
        self._makers = makers
        self._made: dict[str, Fitted | None] = {}

    def on_span(self, wanted: Iterable[str]) -> Attributes:
        """Return those of the attributes `wanted` that there are, as a span carries them: JSON as text."""
        return self._told(wanted, "text")

    def on_event(self, wanted: Iterable[str]) -> Attributes:
        """Return those of the attributes `wanted` that there are, as an event carries them: JSON as it is."""
        return self._told(wanted, "value")

    def text(self, name: str) -> str | None:
        """Return a single text, None if there is none."""
        made = self._of(name)
        return None if made is None else made.text

    def _told(self, wanted: Iterable[str], form: Literal["text", "value"]) -> Attributes:
        found = {name: made for name in wanted if (made := self._of(name)) is not None}
        told: Attributes = {name: getattr(made, form) for name, made in found.items()}
        if any(made.cut for made in found.values()):
            told[names.CONTENT_TRUNCATED] = True
        return told

    def _of(self, name: str) -> Fitted | None:
        if name not in self._made and name in self._makers:
            self._made[name] = None  # what fails is not tried again
            try:
                self._made[name] = self._make(name)
            except Exception as error:
                self._content.failed(error, f"the redactor, or making {name},")
        return self._made.get(name)

    def _make(self, name: str) -> Fitted | None:
        capture, value = self._content.capture, self._makers[name]()
        if value is not None and capture.redact is not None:
            value = _redacted(capture.redact, name, value)
        if value is None:
            return None
        if names.ATTRIBUTES[name].type == "any":
            return fitted(value, capture.max_bytes)
        expect(name, value, str, "a str")
        text, cut = shortened(str(value), capture.max_bytes)
        return Fitted(text, text, cut)
