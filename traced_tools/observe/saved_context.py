"""The OpenTelemetry context of a place in the code."""

from __future__ import annotations

from typing import Self

from opentelemetry import context as otel_context


class Place:
    """The OpenTelemetry context at creation; a `with` block makes it current again.

    Coroutines that the garbage collector closes run in a context that is not theirs, and in any order.
    """

    __slots__ = ("_before", "_context")

    def __init__(self) -> None:
        self._context = otel_context.get_current()

    def __enter__(self) -> Self:
        self._before = otel_context.get_current()
        if self._before is not self._context:
            otel_context.attach(self._context)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not self._context:
            otel_context.attach(self._before)
