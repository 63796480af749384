"""Regular expressions that are matched in a time that is linear in the length of the text."""

from __future__ import annotations

from collections.abc import Callable

from pydantic_core import CoreSchema, SchemaError, SchemaValidator, core_schema


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Return a function that searches a text for a pattern; it never matches a text with a lone surrogate.

    Args:
        pattern: a regular expression in the syntax of Rust's regex crate.

    Raises:
        ValueError: if the pattern is not one, such as one that looks around, or if it is too large.
    """
    validator = _compile(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    return lambda text: validator.isinstance_python(text, strict=True)


def compile_filter(pattern: str) -> Callable[[list[str]], list[bool]]:
    """Return a function that searches each of many texts as `compile_pattern` does, in one call for all of them."""
    text = core_schema.str_schema(pattern=pattern, regex_engine="rust-regex", strict=True)
    validator = _compile(
        core_schema.list_schema(core_schema.with_default_schema(text, default=None, on_error="default"))
    )
    return lambda texts: [found_text is not None for found_text in validator.validate_python(texts)]


def _compile(schema: CoreSchema) -> SchemaValidator:
    try:
        return SchemaValidator(schema)
    except SchemaError:
        raise ValueError("not a regular expression in the syntax of Rust's regex crate") from None
