"""What bytes and addresses tell of the image they hold."""

from __future__ import annotations

import re
from base64 import b64decode
from contextlib import suppress

_SIGNATURES = {
    "image/png": rb"\x89PNG\r\n\x1a\n",
    "image/jpeg": rb"\xff\xd8\xff",
    "image/gif": rb"GIF8[79]a",
    "image/webp": rb"RIFF.{4}WEBP",
}
_DATA_URL = re.compile(r"data:(?P<type>[\w.+-]+/[\w.+-]+)(;[^,;]*)*;base64,(?P<data>[A-Za-z0-9+/]*={0,2})")


def image_type(data: bytes) -> str | None:
    """Return what image `data` is by how it begins (https://mimesniff.spec.whatwg.org), None if it is none."""
    return next((kind for kind, start in _SIGNATURES.items() if re.match(start, data, re.DOTALL)), None)


def image_in(url: str) -> tuple[str, bytes] | None:
    """Return media type and bytes of the image that `url` itself holds (RFC 2397), None for any other address."""
    found = _DATA_URL.fullmatch(url)
    if found is not None:
        with suppress(ValueError):
            return found["type"], b64decode(found["data"])
    return None
