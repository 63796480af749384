"""Regular expressions that are matched in a time that is linear in the length of the text."""

from __future__ import annotations

from collections.abc import Callable

from pydantic_core import SchemaError, SchemaValidator, core_schema


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Return a function that searches a text for a pattern; it never matches a text with a lone surrogate.

    Args:
        pattern: a regular expression in the syntax of Rust's regex crate.

    Raises:
        ValueError: if the pattern is not one, such as one that looks around, or if it is too large.
    """
    try:
        validator = SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError:
        raise ValueError("not a regular expression in the syntax of Rust's regex crate") from None
    return lambda text: validator.isinstance_python(text, strict=True)
