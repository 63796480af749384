"""Attributes of spans, metrics and log records, and how values are added to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

Attributes = dict[str, "AttributeValue"]


def put(attributes: Attributes, name: str, value: AttributeValue | None) -> None:
    """Add an attribute, unless its value is None, an empty text or an empty sequence; 0 and False are values."""
    if value is not None and value != "" and value != ():
        attributes[name] = value


def copy_present_fields(source: object, fields: tuple[tuple[str, str], ...], attributes: Attributes) -> None:
    """Put those of `fields` (attribute of `source`, telemetry name) that are set."""
    for field, name in fields:
        if (value := getattr(source, field, None)) is not None:
            put(attributes, name, value)
