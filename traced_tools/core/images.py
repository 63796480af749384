"""Detects the type of image bytes, and decodes images in `data:` URLs."""

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


def detect_image_type(data: bytes) -> str | None:
    """Return the media type for the first bytes of `data` (https://mimesniff.spec.whatwg.org), None if unknown."""
    return next((kind for kind, start in _SIGNATURES.items() if re.match(start, data, re.DOTALL)), None)


def decode_data_url(url: str) -> tuple[str, bytes] | None:
    """Return the media type and bytes of an image in a `data:` URL (RFC 2397), None for any other URL."""
    match = _DATA_URL.fullmatch(url)
    if match is not None:
        with suppress(ValueError):
            return match["type"], b64decode(match["data"])
    return None
