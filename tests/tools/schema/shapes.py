"""Models with optional fields, as parts of arguments and as forms of a union."""

from __future__ import annotations

from pydantic import BaseModel


class Part(BaseModel):
    """A model with one optional field."""

    size: int = 3
    unit: str | None = "m"


class Round(BaseModel):
    """One form of a union."""

    radius: int
    unit: str = "m"


class Square(BaseModel):
    """Another."""

    side: int
    name: str = ""
