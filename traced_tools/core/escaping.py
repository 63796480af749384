"""Text as databases and JSON for them can store it: without NUL and lone surrogates."""

from __future__ import annotations

import re
from typing import Final

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_ESCAPE: Final = re.compile(r"\\(ud[89a-f][0-9a-f]{2}|.)", re.DOTALL)


def escaped(text: str) -> str:
    r"""Return a text without what databases cannot store: NUL as `\0`, a lone surrogate as `\ud800`.

    A backslash is `\\`.
    """
    encodable_text = text.replace("\\", "\\\\").replace("\0", "\\0")
    if encodable_text.isascii():
        return encodable_text
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):x}", encodable_text)


def unescaped(text: str) -> str:
    """Return the text that was escaped."""
    if "\\" not in text:
        return text
    return _ESCAPE.sub(_unescape, text)


def _unescape(escape: re.Match[str]) -> str:
    if len(escape[1]) > 1:
        return chr(int(escape[1][1:], 16))
    return "\0" if escape[1] == "0" else escape[1]
