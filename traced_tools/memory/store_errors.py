"""Errors of databases become errors of this package, because the text of a driver's error may quote a message."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from traced_tools.errors import ChatMemoryUnavailable

P = ParamSpec("P")
T = TypeVar("T")


def translate_errors(
    problem_of: Callable[[Exception], str | None],
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator for the methods of a repository that makes a driver's errors `ChatMemoryUnavailable`.

    Args:
        problem_of: returns what to say of a driver's error; None for any other error, which passes unchanged.
    """

    def decorate(method: Callable[P, T]) -> Callable[P, T]:
        @wraps(method)
        def translated(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return method(*args, **kwargs)
            except Exception as error:
                if (problem := problem_of(error)) is None:
                    raise
                original = error
            # after the block, so that the driver's error is not the context of ours, which loggers print
            raise ChatMemoryUnavailable(
                f"{args[0]!r} fails ({problem}): check that the store runs and can be written", original
            )

        return translated

    return decorate
