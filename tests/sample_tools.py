"""Plain tools: one that works, one that fails, one whose result is the answer."""

from __future__ import annotations

from traced_tools import tool


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def fail(reason: str = "no") -> str:
    """Fail."""
    raise RuntimeError(reason)


@tool(return_direct=True)
def direct(text: str) -> str:
    """Answer directly."""
    return text
