"""How a model is asked to answer."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from traced_tools.core.messages import Value


def _schema(value: object) -> object:
    if isinstance(value, type):
        raise ValueError("must be a JSON Schema; of a pydantic model that is Model.model_json_schema()")
    return value


FrozenMapping = Annotated[Mapping[str, Any], AfterValidator(MappingProxyType), PlainSerializer(dict)]


class ChatOptions(Value):
    """Settings of a model call; what is None is left to the provider.

    Args:
        temperature: sampling temperature.
        top_p: nucleus sampling mass, 0 to 1.
        max_tokens: the most tokens the answer may have.
        stop: texts that end the answer.
        seed: for answers that repeat, where the provider offers it.
        tool_choice: `auto`, `none`, `required`, or the name of the one tool to call.
        parallel_tool_calls: whether one answer may ask for several tools.
        reasoning_effort: how long to think; the words are the provider's.
        output_schema: a JSON Schema that the answer must fit, for providers that can be held to one.
        extra: further fields, sent to the provider as they are.
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
        """Return these options with those set in `other` on top; `extra` is merged key by key."""
        if other is None:
            return self
        changes = {name: value for name in other.model_fields_set if (value := getattr(other, name)) is not None}
        if "extra" in changes:
            changes["extra"] = {**self.extra, **other.extra}
        return self.replace(**changes) if changes else self


NO_OPTIONS = ChatOptions()
