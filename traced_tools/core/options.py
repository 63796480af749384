"""The options of a model call."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from traced_tools.core.messages import Value


def _schema(value: object) -> object:
    if isinstance(value, type):
        raise ValueError("must be a JSON Schema; for a pydantic model, pass Model.model_json_schema()")
    return value


FrozenMapping = Annotated[Mapping[str, Any], AfterValidator(MappingProxyType), PlainSerializer(dict)]


class ChatOptions(Value):
    """Options of a model call; for an option that is None, the provider's default applies.

    Args:
        temperature: the sampling temperature.
        top_p: the probability mass for nucleus sampling, from 0 to 1.
        max_tokens: the maximum number of tokens in the answer.
        stop: texts that end the answer.
        seed: the seed for reproducible answers, for providers that support it.
        tool_choice: `auto`, `none`, `required`, or the name of the tool that must be called.
        parallel_tool_calls: whether one answer may contain several tool calls.
        reasoning_effort: the amount of reasoning; the valid values depend on the provider.
        output_schema: a JSON Schema that the answer must match, for providers that support it.
        extra: further fields of the request, sent to the provider unchanged.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = Field(default=None, gt=0)
    stop: tuple[str, ...] | None = Field(default=None, repr=False)
    seed: int | None = None
    tool_choice: Literal["auto", "none", "required"] | str | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    output_schema: Annotated[FrozenMapping | None, BeforeValidator(_schema)] = Field(default=None, repr=False)
    extra: FrozenMapping = Field(default_factory=lambda: MappingProxyType({}), repr=False)

    def merged(self, other: ChatOptions | None) -> ChatOptions:
        """Return these options overridden by those set in `other`; `extra` is merged key by key."""
        if other is None:
            return self
        changes = {name: value for name in other.model_fields_set if (value := getattr(other, name)) is not None}
        if "extra" in changes:
            changes["extra"] = {**self.extra, **other.extra}
        return self.replace(**changes) if changes else self


NO_OPTIONS = ChatOptions()
