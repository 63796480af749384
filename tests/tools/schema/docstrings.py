"""Parses a text as the docstring of a function."""

from __future__ import annotations

from traced_tools.tools.schema.docstrings import Docstring, read_docstring


def read(text: str | None) -> Docstring:
    """Parse `text` as the docstring of a function."""

    def function() -> None: ...

    function.__doc__ = text
    return read_docstring(function)
