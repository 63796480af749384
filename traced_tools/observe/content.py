"""Which contents may leave the process: none, unless content capture is configured.

Contents are arguments, results, messages, system instructions, tool definitions, reasons, texts and stack traces of
exceptions, and names of tools that the model made up. Without content capture, nothing here is made. The names of who
asked and of who decided about a call are contents, too; without content capture, a keyed pseudonym stands for them.
"""

from __future__ import annotations

import hmac
import marshal
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final, Literal

from traced_tools.core.checks import expect, expect_callable, expect_whole
from traced_tools.core.enums import CAPTURE_MODES, CaptureMode, Conventions
from traced_tools.errors import ConfigurationError
from traced_tools.observe import names
from traced_tools.observe.settings import read_capture_mode, read_or_warn, read_pseudonym_key
from traced_tools.observe.truncation import BoundedJson, Item, LongList, packed, truncate_json, truncate_utf8
from traced_tools.observe.viewer import current_viewer

if TYPE_CHECKING:
    from traced_tools.core.messages import ToolResultPart
    from traced_tools.core.tool_definition import ToolCallback
    from traced_tools.observe.attributes import Attributes
    from traced_tools.observe.stages.subjects import ObservedTools

Redactor = Callable[[str, Any], Any]
"""Given an attribute's name and its value as plain JSON, returns what may be captured of it; None for nothing."""


MayCapture = Callable[[str], bool]
"""Whether arguments and results of the tool of that name may be captured."""
Items = dict[bytes, Item]
"""Items of lists by their packed values."""


@dataclass(frozen=True)
class ContentCapture:
    """Which contents are captured, and how.

    Args:
        mode: `NO_CONTENT`, `SPAN_ONLY`, `EVENT_ONLY` or `SPAN_AND_EVENT`, the words of the variable
            `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`; small letters will do.
        redact: called with the attribute's name and its value before anything is attached; returns what may be captured
            of it, or None. The value is plain JSON and may be changed in place. What it raises drops the value.
        max_bytes: the most bytes of one value; a value that is cut is marked `traced_tools.content.truncated`.
        per_message: whether `redact` decides about each input message, system message and tool definition by itself. It
            gets them one by one, each as a list of one and once in a run, and returns a list or None. By default, it
            gets the whole conversation at each model call, which takes longer with each message.

    Raises:
        ConfigurationError: for another word, or for `per_message` without `redact`.
    """

    mode: CaptureMode
    redact: Redactor | None = field(default=None, repr=False)
    max_bytes: int = 8192
    per_message: bool = False

    def __post_init__(self) -> None:
        expect("mode", self.mode, str, f"one of {', '.join(CAPTURE_MODES)}")
        object.__setattr__(self, "mode", self.mode.upper())
        if self.mode not in CAPTURE_MODES:
            raise ConfigurationError(f"capture must be one of {', '.join(CAPTURE_MODES)}")
        expect_callable("redact", self.redact)
        if iscoroutinefunction(self.redact):
            raise TypeError("redact must be a plain function: drop `async`")
        expect_whole("max_bytes", self.max_bytes, 256)
        expect("per_message", self.per_message, bool, "a bool")
        if self.per_message and self.redact is None:
            raise ConfigurationError("per_message needs redact=, which it is about")

    @property
    def on_spans(self) -> bool:
        """Whether spans carry content."""
        return self.mode in ("SPAN_ONLY", "SPAN_AND_EVENT")

    @property
    def on_events(self) -> bool:
        """Whether events carry content."""
        return self.mode in ("EVENT_ONLY", "SPAN_AND_EVENT")


def as_capture(capture: ContentCapture | str | None) -> ContentCapture | None:
    """Return a setting as a `ContentCapture`; raises `TypeError` or `ConfigurationError` for an invalid one."""
    expect("capture", capture, (ContentCapture, str, type(None)), "a ContentCapture, one of its modes, or None")
    return ContentCapture(capture) if isinstance(capture, str) else capture  # type: ignore[arg-type]  # it is checked there


_of_process: ContentCapture | None = None


def set_process_capture(capture: ContentCapture | str | None) -> None:
    """Set content capture for clients without a setting of their own; None leaves it to the environment."""
    global _of_process
    _of_process = as_capture(capture)


_redacting: ContextVar[bool] = ContextVar("traced_tools_redacting", default=False)


def _redact(redact: Redactor, name: str, value: object) -> object:
    """Return what a redactor leaves of a value; a run inside the redactor captures no contents."""
    plain = [*value] if isinstance(value, Sequence | LongList) and not isinstance(value, str) else value
    token = _redacting.set(True)
    try:
        return redact(name, plain)
    finally:
        _redacting.reset(token)


def capture_in_force(own: ContentCapture | None) -> ContentCapture | None:
    """Return the setting of the client, else of the process, else of the environment; None for no capture.

    In development mode, spans and events carry no contents: the viewer alone gets what the redactor leaves of them.
    """
    if _redacting.get():
        return None
    capture = own or _of_process or _by_environment()
    if current_viewer() is not None:
        return replace(capture or ContentCapture("NO_CONTENT"), mode="NO_CONTENT")
    return capture if capture is not None and capture.mode != "NO_CONTENT" else None


def _by_environment() -> ContentCapture | None:
    mode: CaptureMode | None = read_or_warn(read_capture_mode, "no content is captured")
    return None if mode is None else ContentCapture(mode)


# What may be captured. Every sink asks here: spans, log-based events, typed events, the audit trail and the log.


def may_capture(tool: ToolCallback | None) -> bool:
    """Whether arguments, results, stated reasons and exception texts of a tool may be captured.

    They may not if the tool is unknown, since the call may be meant for a tool with capture disabled, or if its
    metadata does not say `capture=True`.
    """
    return tool is not None and getattr(tool.metadata, "capture", False) is True


def may_capture_name(tool: str, tools: ObservedTools) -> bool:
    """Whether the name of a tool may leave the process without content capture: not if the model made it up."""
    return tool in tools.by_name


def may_capture_in_log(tool: ToolCallback | None, content: RunContent | None) -> bool:
    """Whether debugging may log the text of a tool's exception as it is: not if the run's redactor decides about it."""
    return content is None and may_capture(tool)


class RunContent:
    """Which contents of one run may be captured.

    Args:
        capture: the setting.
        failed: called with an error that keeps a content from being captured, and what raised it, for the log.
        conventions: the conventions whose shapes messages have.
    """

    __slots__ = ("_captured", "_items", "_lists", "_withheld", "capture", "conventions", "failed")

    def __init__(
        self, capture: ContentCapture, failed: Callable[[Exception, str], None], conventions: Conventions
    ) -> None:
        self.capture = capture
        self.failed = failed
        self.conventions = conventions
        self._captured: set[str] = set()
        self._withheld: set[str] = set()
        self._lists: dict[str, LongList] = {}
        self._items: dict[str, Items] = {}

    def register_tools(self, tools: Iterable[ToolCallback]) -> None:
        """Record which of the run's tools may be captured."""
        before = len(self._captured) + len(self._withheld)
        for tool in tools:
            (self._captured if may_capture(tool) else self._withheld).add(tool.definition.name)
        if len(self._captured) + len(self._withheld) > before:
            self._lists = {}  # they may have contents that may not be captured anymore

    def replace_list(self, name: str, values: LongList) -> LongList | None:
        """Keep the list of a further model call, and return the one before it; None for the first.

        Args:
            name: the attribute that is a list.
            values: the list.
        """
        before = self._lists.get(name)
        self._lists[name] = values
        return before

    def redacted(self, name: str, value: object) -> object:
        """Return what may be captured of a value: what the redactor, if any, leaves of it.

        Args:
            name: the attribute.
            value: the value; None for none.
        """
        redact, is_repeated = self.capture.redact, isinstance(value, LongList)
        if value is None or redact is None or (is_repeated and self.capture.per_message):
            return value
        value = _redact(redact, name, value)
        if not is_repeated or not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray):
            return value
        before, items = self._items.get(name, {}), Items()
        self._items[name] = items
        return _RedactedList(value, items, before)

    def redacted_items(self, name: str, item: object) -> Sequence[object]:
        """Return what the redactor leaves of an item of a list that it gets one by one, as a copy if it is plain JSON.

        The redactor may change later what it has returned, and truncation looks at the items again.

        Args:
            name: the attribute that is a list.
            item: the item.

        Raises:
            TypeError: if that is no list.
        """
        assert self.capture.redact is not None
        redacted = _redact(self.capture.redact, name, [item])
        expect("what redact returns", redacted, (list, tuple, type(None)), "a list or None with per_message")
        copy = packed(redacted or ())
        return redacted if copy is None else marshal.loads(copy)  # type: ignore[return-value]  # it is checked there

    def may_capture_calls_of(self, tool: str) -> bool:
        """Whether arguments and results of a tool may be captured, by its name: not if the run does not know it."""
        return tool in self._captured and tool not in self._withheld

    def may_capture_error(self) -> bool:
        """Whether the text of an exception may be captured that a tool did not raise itself.

        Any exception of the run may quote a tool's arguments and results, so not if there is a tool with capture
        disabled. What a tool raises itself may be captured if the tool may.
        """
        return not self._withheld

    def may_capture_lookup(self, tool: str) -> bool:
        """Whether the words may be captured that a tool looks up in memory.

        The model may quote any call and result in them, so not if there is another tool with capture disabled.
        """
        return self._withheld <= {tool}

    def may_capture_answer(self, stop_reason: str, tool_calls: int) -> bool:
        """Whether a run's answer may be captured: not if it may be the result of a tool with capture disabled.

        Args:
            stop_reason: why the run ended.
            tool_calls: how many calls the model asked for.
        """
        is_result = stop_reason == "return_direct" or (stop_reason == "advisor" and tool_calls > 0)
        return not (is_result and self._withheld)

    def may_capture_delta(self, size: int, tool: str | None = None) -> bool:
        """Whether a piece of a streamed answer may be captured.

        Not with a redactor, which needs the whole value, and not if the piece is too long, since it is not cut.

        Args:
            size: bytes of the piece.
            tool: the tool whose arguments it belongs to; None for text.
        """
        if self.capture.redact is not None or size > self.capture.max_bytes:
            return False
        return tool is None or self.may_capture_calls_of(tool)


def may_capture_after(results: Iterable[ToolResultPart], text: str, may_capture_calls_of: MayCapture) -> bool:
    """Whether a text of the assistant may be captured: not if it repeats a result before it that may not.

    Args:
        results: the results right before the text.
        text: the text.
        may_capture_calls_of: whether arguments and results of the tool of that name may be captured.
    """
    return not any(
        result.content in text for result in results if result.content and not may_capture_calls_of(result.name)
    )


class _RedactedList(LongList):
    """What a redactor leaves of a list, whose items are not encoded again if the list before it had the same ones.

    Args:
        values: the list.
        items: where the encoded items go.
        before: the encoded items of the list before it.
    """

    def __init__(self, values: Sequence[object], items: Items, before: Items) -> None:
        self._values = values
        self._items = items
        self._items_before = before

    def __iter__(self) -> Iterator[object]:
        return iter(self._values)

    def newest_first(self, most: int) -> Iterator[Item]:
        """Yield the items, the last one first."""
        for value in reversed(self._values):
            key = packed(value)
            if key is None:
                yield Item(value, most)
                continue
            item = self._items.get(key) or self._items_before.get(key)
            # a copy, because the redactor may change later what it has returned
            self._items[key] = item = item or Item(marshal.loads(key), most)
            yield item


Makers = Mapping[str, Callable[[], object]]
"""The function that makes the value of each attribute that may be captured; it returns None for no value."""


class LazyContent:
    """The contents of one span and of its events: each made when it is first asked for, redacted, and truncated.

    Args:
        content: what may be captured.
        makers: the function that makes each content.
    """

    __slots__ = ("_content", "_contents", "_makers")

    def __init__(self, content: RunContent, makers: Makers) -> None:
        self._content = content
        self._makers = makers
        self._contents: dict[str, BoundedJson | None] = {}

    def on_span(self, keys: Iterable[str]) -> Attributes:
        """Return the attributes of `keys` that have a value, as a span carries them: JSON as text."""
        return self._attributes(keys, "text")

    def on_event(self, keys: Iterable[str]) -> Attributes:
        """Return the attributes of `keys` that have a value, as an event carries them: JSON as it is."""
        return self._attributes(keys, "value")

    def text(self, name: str) -> str | None:
        """Return the text of one content; None if there is none."""
        bounded = self._get_content(name)
        return None if bounded is None else bounded.text

    def _attributes(self, keys: Iterable[str], form: Literal["text", "value"]) -> Attributes:
        bounded_contents = {name: bounded for name in keys if (bounded := self._get_content(name)) is not None}
        attributes: Attributes = {name: getattr(bounded, form) for name, bounded in bounded_contents.items()}
        if any(bounded.cut for bounded in bounded_contents.values()):
            attributes[names.CONTENT_TRUNCATED] = True
        return attributes

    def _get_content(self, name: str) -> BoundedJson | None:
        if name not in self._contents and name in self._makers:
            self._contents[name] = None  # what fails is not tried again
            try:
                self._contents[name] = self._make(name)
            except Exception as error:
                self._content.failed(error, f"the redactor, or making {name},")
        return self._contents.get(name)

    def _make(self, name: str) -> BoundedJson | None:
        capture, value = self._content.capture, self._content.redacted(name, self._makers[name]())
        if value is None:
            return None
        if names.ATTRIBUTES[name].type == "any":
            bounded = truncate_json(value, capture.max_bytes)
            is_dropped = capture.per_message and isinstance(value, LongList) and not bounded.cut and not bounded.value
            return None if is_dropped else bounded
        expect(name, value, str, "a str")
        text, cut = truncate_utf8(str(value), capture.max_bytes)
        return BoundedJson(text, text, cut)


# The principal of a run, and the person who decided about a call.

Digest = Callable[[str], str | None]
_KEY_OF_PROCESS: Final = secrets.token_bytes(32)
_of_trail: Digest | None = None


def offer_digest(digest: Digest) -> None:
    """Make pseudonyms with the key of an audit trail, unless the environment has a key or another trail came first.

    Args:
        digest: returns the keyed digest, in hex, by which records of the trail identify a name; None without a key.
    """
    global _of_trail
    _of_trail = _of_trail or digest


def recorded_person(by: str | None, tool: ToolCallback | None, content: RunContent | None) -> str | None:
    """Return who decided about a call as telemetry may record it: the name if it may be captured, else a pseudonym.

    Args:
        by: the name of the person or service; None if the application named none.
        tool: the call's tool; None if there is none.
        content: which contents the span or event may carry; None for no content.
    """
    if by is None:
        return None
    if content is None or not may_capture(tool):
        return pseudonym_of(by)
    return LazyContent(content, {names.APPROVAL_BY: lambda: by}).text(names.APPROVAL_BY)


def recorded_principal(principal: str, content: RunContent | None) -> str | None:
    """Return on whose behalf a run is as telemetry may record it; None if the redactor leaves nothing of the name.

    Args:
        principal: the name.
        content: which contents the span or event may carry; None for no content, so that a pseudonym stands for it.
    """
    if content is None:
        return pseudonym_of(principal)
    return LazyContent(content, {names.USER_ID: lambda: principal}).text(names.USER_ID)


def pseudonym_of(name: str) -> str:
    """Return what stands for a name in spans, events and audit records: the same for the same name and key.

    Only the owner of the key finds the name. The key is that of the environment, else that of the first audit trail
    that the process records calls in, else a random key of the process.
    """
    key = read_or_warn(read_pseudonym_key, "the key of an audit trail or a random one makes pseudonyms")
    if key is None and _of_trail is not None and (digest := _of_trail(name)) is not None:
        return pseudonym_by(digest)
    return pseudonym_with(key or _KEY_OF_PROCESS, name)


def pseudonym_with(key: bytes, name: str) -> str:
    """Return the pseudonym that a key of the environment or of the process makes of a name."""
    return pseudonym_by(hmac.digest(key, name.encode(errors="replace"), "sha256").hex())


def pseudonym_by(digest: str) -> str:
    """Return the pseudonym that a digest in hex makes."""
    return f"pseudonym:{digest[:16]}"
