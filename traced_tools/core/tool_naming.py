"""Tool names that every provider accepts: at most 64 ASCII letters, digits, `_` and `-`, starting with a letter or `_`.

OpenAI and Anthropic reject a request with any other name, and Gemini also rejects a name that starts with a digit. Real
tools have names with dots, slashes and non-Latin letters.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import sha256

_MAX_LENGTH = 64
_ACCEPTED = re.compile(rf"[A-Za-z_][A-Za-z0-9_-]{{0,{_MAX_LENGTH - 1}}}")
_NOT_ACCEPTED = re.compile(r"[^A-Za-z0-9_-]")
_DIGITS = 8


@lru_cache(maxsize=4096)  # called for each tool of each request
def wire_name(name: str) -> str:
    """Return the name that is sent to providers for the tool `name`: the name itself if they all accept it.

    Otherwise, `_` replaces each character that is not accepted, and precedes a first character that is not a letter. If
    that could make different names equal (non-ASCII letters, a name that is too long or has only such characters), the
    result ends in 8 hexadecimal digits of a hash of the name.
    """
    if _ACCEPTED.fullmatch(name):
        return name
    plain = _NOT_ACCEPTED.sub("_", name)
    if plain and not _ACCEPTED.match(plain):
        plain = f"_{plain}"
    if name.isascii() and len(plain) <= _MAX_LENGTH and plain.strip("_"):
        return plain
    digits = sha256(name.encode()).hexdigest()[:_DIGITS]
    return f"{plain[: _MAX_LENGTH - _DIGITS - 1]}_{digits}"
