"""Values that tools return, and the text that the model reads."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from tests.markers import MARKER
from traced_tools.core.messages import ImagePart
from traced_tools.core.result_conversion import content_of

IMAGE = ImagePart(data=b"12345", media_type="image/png")


class Modern(StrEnum):
    """An enumeration of text."""

    RED = "red"


class Stranger:
    """What JSON has no form for."""

    def __repr__(self) -> str:
        return MARKER


def text_of(value: Any) -> str:
    """The text of a value that has no images."""
    content = content_of(value)
    assert content.images == ()
    return content.text
