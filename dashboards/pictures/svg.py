"""An SVG under construction: shapes, and texts that stay within a width."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal
from xml.sax.saxutils import escape, quoteattr

FONT: Final = "Inter, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"
_NARROW: Final = "ijl|.,:;'!()[]{}frtI -/\"`"
_WIDE: Final = "mwMW%@—…→"
Anchor = Literal["start", "middle", "end"]


@dataclass(frozen=True)
class Box:
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """Its right edge."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """Its lower edge."""
        return self.y + self.height

    def inside(self, left: float, top: float, right: float, bottom: float) -> Box:
        """Return the rectangle inside margins."""
        return Box(self.x + left, self.y + top, self.width - left - right, self.height - top - bottom)


@dataclass
class Canvas:
    """The elements of a picture in the order in which they are drawn."""

    elements: list[str] = field(default_factory=list)

    def rect(self, box: Box, fill: str, *, stroke: str = "none", radius: float = 0) -> None:
        """Draw a rectangle."""
        rounded = f' rx="{radius:g}"' if radius else ""
        edge = f' stroke="{stroke}"' if stroke != "none" else ""
        at = f'x="{number(box.x)}" y="{number(box.y)}" width="{number(box.width)}" height="{number(box.height)}"'
        self.elements.append(f'<rect {at}{rounded} fill="{fill}"{edge}/>')

    def path(
        self, d: str, *, stroke: str = "none", fill: str = "none", width: float = 1, opacity: float = 1, dash: str = ""
    ) -> None:
        """Draw a path."""
        edge = f' stroke="{stroke}" stroke-width="{width:g}" stroke-linejoin="round"' if stroke != "none" else ""
        faded = f' opacity="{opacity:g}"' if opacity != 1 else ""
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.elements.append(f'<path d="{d}" fill="{fill}"{edge}{faded}{dashed}/>')

    def text(
        self, x: float, y: float, text: str, *, size: float, fill: str, anchor: Anchor = "start", bold: bool = False
    ) -> None:
        """Draw a text on a baseline."""
        placed = f' text-anchor="{anchor}"' if anchor != "start" else ""
        weight = ' font-weight="500"' if bold else ""
        at = f'x="{number(x)}" y="{number(y)}" font-size="{size:g}" fill="{fill}"{placed}{weight}'
        self.elements.append(f"<text {at}>{escape(text)}</text>")

    def paragraph(self, box: Box, text: str, *, size: float, fill: str) -> None:
        """Draw a text in the middle of a rectangle, on several lines if it is long."""
        lines = wrapped(text, box.width, size)
        top = box.y + (box.height - len(lines) * size * 1.4) / 2 + size
        for index, line in enumerate(lines):
            self.text(box.x + box.width / 2, top + index * size * 1.4, line, size=size, fill=fill, anchor="middle")

    def document(self, width: float, height: float, title: str) -> str:
        """Return the picture as a file with a title for readers who cannot see it."""
        size = f'width="{number(width)}" height="{number(height)}" viewBox="0 0 {number(width)} {number(height)}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family={quoteattr(FONT)} role="img">'
        return "\n".join((head, f"<title>{escape(title)}</title>", *self.elements, "</svg>", ""))


def number(value: float) -> str:
    """Return a coordinate, to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")


def line(points: Iterable[tuple[float, float]]) -> str:
    """Return the path of a line, with differences between its points because they are shorter."""
    tenths = [(round(x * 10), round(y * 10)) for x, y in points]
    steps = (f"{_tenth(x - before_x)} {_tenth(y - before_y)}" for (before_x, before_y), (x, y) in pairwise(tenths))
    (x, y), *_ = tenths
    return f"M{_tenth(x)} {_tenth(y)}" + (f"l{' '.join(steps)}" if len(tenths) > 1 else "h1.5")


def _tenth(value: int) -> str:
    return number(value / 10)


def width_of(text: str, size: float) -> float:
    """Return the width of a text: an estimate that rather errs upwards, because the reader's font is not known."""
    shares = (0.36 if each in _NARROW else 0.95 if each in _WIDE else 0.7 if each.isupper() else 0.59 for each in text)
    return size * sum(shares)


def cut(text: str, width: float, size: float) -> str:
    """Return a text that fits into a width, with an ellipsis if it does not."""
    if width_of(text, size) <= width:
        return text
    while text and width_of(f"{text}…", size) > width:
        text = text[:-1]
    return f"{text.rstrip()}…" if text else ""


def wrapped(text: str, width: float, size: float) -> list[str]:
    """Return a text as lines that fit into a width."""
    lines = [""]
    for word in text.split():
        candidate = f"{lines[-1]} {word}".strip()
        if lines[-1] and width_of(candidate, size) > width:
            lines.append(word)
        else:
            lines[-1] = candidate
    return [cut(each, width, size) for each in lines]
