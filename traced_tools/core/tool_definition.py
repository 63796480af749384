"""What the model and the loop know of a tool, and the protocols of tools and resolvers."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, Self, runtime_checkable
from weakref import ref

from pydantic import ConfigDict, Field, field_validator, model_validator

from traced_tools.core.enums import LOCAL
from traced_tools.core.identity_cache import IdentityCache
from traced_tools.core.messages import Value
from traced_tools.core.tool_context import ToolContext


class ToolDefinition(Value):
    """A tool as the model sees it.

    Args:
        name: any printable text without surrounding white space. If a provider does not accept it, a derived name that
            it accepts is sent.
        description: what the tool does and when to use it, written for the model.
        input_schema: JSON Schema (draft 2020-12) of the arguments, which are an object.
    """

    name: str = Field(min_length=1)
    description: str = Field(default="", repr=False)
    input_schema: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}}, repr=False)

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        if not name.isprintable() or name != name.strip():
            raise ValueError("a tool's name must be printable text without surrounding white space")
        return name

    def replace(self, **changes: Any) -> Self:
        """Return a validated copy with `changes`; it keeps the argument reader unless the schema changes."""
        copy = super().replace(**changes)
        return copy if "input_schema" in changes else self._share_reader(copy)

    def __copy__(self) -> Self:
        """Return a copy with the same argument reader."""
        return self._share_reader(super().__copy__())

    def _share_reader(self, copy: Self) -> Self:
        if (reader := reader_of(self)) is not None:
            remember_reader(copy, reader)
        return copy


def definition_digest(definition: ToolDefinition) -> str:
    """Return the plain SHA-256, in hex, of RFC 8785 of a tool's `name`, `description` and `input_schema`.

    A definition is not secret, so the hash has no key. If RFC 8785 does not cover the definition (such as an integer
    beyond 2**53 in its schema), its JSON has sorted keys and no blanks. A definition never changes, so its digest is
    computed once.
    """
    return _digests(definition)


def _compute_digest(definition: ToolDefinition) -> str:
    import rfc8785  # imported here: most runs never need it

    fields: dict[str, Any] = {
        "name": definition.name,
        "description": definition.description,
        "input_schema": definition.input_schema,
    }
    try:
        canonical = rfc8785.dumps(fields)
    except (ValueError, RecursionError):
        canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"), default=_type_name).encode()
    return hashlib.sha256(canonical).hexdigest()


_digests: IdentityCache[ToolDefinition, str] = IdentityCache(_compute_digest)


class ArgumentReader(Protocol):
    """Validates the arguments of a tool's function."""

    def check(self, text: str) -> dict[str, Any]:
        """Return the arguments in JSON text; raise an error if they are invalid."""

    def as_json(self, value: dict[str, Any], text: str) -> dict[str, Any]:
        """Return the JSON form of `value`, which `check` returned for `text`, under the names in the schema."""


_READERS: dict[int, tuple[ref[ToolDefinition], ArgumentReader]] = {}
"""By the id of the definition, while it exists: definitions have no hash, and readers are not part of their value."""


def remember_reader(definition: ToolDefinition, reader: ArgumentReader) -> None:
    """Register the argument reader of a definition, so that a wrapper that passes the definition on can use it."""
    key, forget = id(definition), _READERS.pop  # bound now: at the end of the process, the module has lost its names
    _READERS[key] = (ref(definition, lambda _: forget(key, None)), reader)


def reader_of(definition: ToolDefinition) -> ArgumentReader | None:
    """Return the argument reader of a definition, or None if it does not come from a typed function."""
    entry = _READERS.get(id(definition))
    return None if entry is None else entry[1]


class ToolAnnotations(Value):
    """What a tool's author says about its effects, as the hints of MCP do. None is a hint that the author doesn't give.

    Nothing checks that a hint is true, so trust it only as far as you trust the author.

    Args:
        read_only: whether the tool changes nothing; MCP's `readOnlyHint`.
        destructive: whether the tool may delete or overwrite something; MCP's `destructiveHint`.
        idempotent: whether a repeated call with the same arguments changes nothing more; MCP's `idempotentHint`.
        open_world: whether the tool reaches systems that its author doesn't control, such as the web; MCP's
            `openWorldHint`.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(strict=True)

    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None

    @property
    def may_run_again(self) -> bool:
        """Whether a call may run once more if nobody knows whether it has run."""
        return self.idempotent is True or self.read_only is True


RequiresApproval = Callable[[Mapping[str, Any]], Any]
"""A plain or async predicate over the validated arguments of a call, which returns whether the call needs approval."""


RetryPredicate = Callable[[Exception], bool]
"""A plain function that takes a tool's exception and returns whether another attempt is worth it."""


class ToolMetadata(Value):
    """Settings of a tool for the loop, which the model does not see.

    Args:
        return_direct: the tool's result is the run's answer, and the model is not asked again. This holds if each tool
            that the answer of the model calls is marked, and each call succeeds or is answered by an advisor; otherwise
            the model reads the results. Several results are joined by line breaks, in the order of the calls.
        source: where the tool comes from: `local`, or the configured name of an MCP server.
        own_name: the name by which the source itself knows the tool, which may be offered under another one; None if
            there is no such name. The rules of a policy read it, too.
        timeout: seconds that one attempt may take; None for no limit. After that, the model reads that the call timed
            out. An async tool is cancelled. A blocking tool cannot be stopped: its thread goes on and its result is
            dropped.
        retries: how many further attempts follow failures of the classes `retry_on`, with growing pauses.
        retry_on: one or more exception classes that are worth another attempt, or a plain function that takes the
            exception and returns whether it is; a time-out is a `TimeoutError`. These failures are expected and not
            logged.
        sequential: the tool runs alone: earlier calls of the same answer finish first, and later ones wait.
        requires_approval: whether the tool runs only if the call is approved, or a plain or async predicate over
            the validated arguments. If no approver decides, the run ends, and the call waits. A predicate that fails or
            returns anything but False requires approval.
        inline: on asyncio, the plain function or `call` of the tool runs in place on the event loop instead of in a
            worker thread. Set it for a fast tool that never waits: the loop is blocked meanwhile, and calls of one
            answer run one after the other. Not allowed with a `timeout`, which could not interrupt the tool.
        repeatable: the tool may be called with the same arguments any number of times, such as a tool that polls.
            `LoopLimits(max_repeated_calls=...)` does not count its calls.
        capture: False keeps arguments, results, reasons and exception texts out of captured content.
        annotations: what the tool's author says about its effects, for the rules of a policy.
        pin_changes: what differs from the pinned tool of an MCP server, such as `description`; `new` for a tool that is
            not pinned.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(strict=True)

    return_direct: bool = False
    source: str = LOCAL
    own_name: str | None = None
    timeout: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    retries: int = Field(default=0, ge=0)
    retry_on: tuple[type[Exception], ...] | RetryPredicate = (ConnectionError, TimeoutError)
    sequential: bool = False
    inline: bool = False
    requires_approval: bool | RequiresApproval = False
    repeatable: bool = False
    capture: bool = True
    annotations: ToolAnnotations = ToolAnnotations()
    pin_changes: tuple[str, ...] = ()

    @field_validator("retry_on", mode="before")
    @classmethod
    def _are_classes(cls, retry_on: Any) -> Any:
        if inspect.iscoroutinefunction(retry_on):
            raise ValueError("retry_on must be a plain function, because it is not awaited: drop `async`")
        return (retry_on,) if isinstance(retry_on, type) else retry_on

    @model_validator(mode="after")
    def _can_be_interrupted(self) -> Self:
        if self.inline and self.timeout is not None:
            raise ValueError("a timeout cannot interrupt a tool that runs inline: drop timeout=, or inline=True")
        return self


def own_name_of(metadata: ToolMetadata) -> str | None:
    """Return `own_name` of a tool's metadata, whose class may be the application's and lack it."""
    return getattr(metadata, "own_name", None)


@runtime_checkable
class ToolCallback(Protocol):
    """A tool that the loop can run.

    An optional `async def acall` with the same parameters is used under asyncio, and in every mode if the tool has a
    time-out. If a class overrides only one of the two, every mode runs the override.
    """

    @property
    def definition(self) -> ToolDefinition:
        """The tool as the model sees it."""

    @property
    def metadata(self) -> ToolMetadata:
        """The tool's settings for the loop."""

    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        """Run the tool on JSON text and return what the model reads."""


@runtime_checkable
class ToolCallbackResolver(Protocol):
    """Finds tools by name."""

    def resolve(self, name: str) -> ToolCallback | None:
        """Return the tool with this name, or None."""


def _type_name(value: object) -> str:
    return type(value).__name__
