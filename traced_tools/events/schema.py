"""The JSON Schema of events."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, TypeAdapter

from traced_tools.observe.typed_events.types import (
    AnswerEvaluated,
    IterationFinished,
    IterationStarted,
    MemoryCompacted,
    MemoryRead,
    MemoryStored,
    MissingResultsAnswered,
    ModelResponded,
    RunFinished,
    RunStarted,
    TextDelta,
    ToolArgumentsDelta,
    ToolDecided,
    ToolFinished,
    ToolIntended,
    ToolProgressed,
    ToolsChanged,
    ToolsDiscovered,
    ToolStarted,
)

AnyEvent = Annotated[
    RunStarted
    | IterationStarted
    | ModelResponded
    | AnswerEvaluated
    | ToolIntended
    | ToolDecided
    | ToolProgressed
    | ToolStarted
    | ToolFinished
    | ToolsChanged
    | ToolsDiscovered
    | MemoryRead
    | MemoryStored
    | MemoryCompacted
    | MissingResultsAnswered
    | IterationFinished
    | RunFinished
    | TextDelta
    | ToolArgumentsDelta,
    Discriminator("type"),
]
_ALWAYS = ("type", "schema_version")


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of all event types, with `type` as the discriminator.

    Fields that are null may be absent, and later releases may add fields without changing `schema_version`.
    """
    schema = TypeAdapter(AnyEvent).json_schema(mode="serialization")
    for name, definition in schema["$defs"].items():
        definition.pop("additionalProperties", None)  # usage may have additional counts
        definition["description"] = definition["description"].partition("\n")[0]
        if name not in ("Usage", "PolicyVerdict"):
            definition["required"] = [*_ALWAYS, *definition["required"]]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Event of traced_tools", **schema}
