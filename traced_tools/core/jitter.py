"""Random lengths of pauses."""

from __future__ import annotations

from random import SystemRandom

# The state of the `random` module belongs to the application, which may have seeded it.
_RANDOM = SystemRandom()


def jittered(pause: float, least: float) -> float:
    """Return a random pause, so that callers that failed together do not retry together.

    Args:
        pause: the longest pause, in seconds.
        least: the part of `pause` that the result has at least, from 0 to 1.
    """
    return pause * _RANDOM.uniform(least, 1.0)
