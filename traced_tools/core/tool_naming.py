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
_ENDS_IN_HASH = re.compile(rf"_[0-9a-f]{{{_DIGITS}}}$")


@lru_cache(maxsize=4096)  # called for each tool of each request
def wire_name(name: str) -> str:
    """Return the name that is sent to providers for the tool `name`: the name itself if they all accept it.

    Otherwise, `_` replaces each character that is not accepted, and precedes a first character that is not a letter. If
    that could make different names equal (non-ASCII letters, a name that is too long or has only such characters), the
    result ends in 8 hexadecimal digits of a hash of the name.
    """
    if _ACCEPTED.fullmatch(name):
        return name
    plain = _plain(name)
    if name.isascii() and len(plain) <= _MAX_LENGTH and plain.strip("_"):
        return plain
    return _with_hash(plain, name)


def unmistakable_name(name: str) -> str:
    """Return a name that every provider accepts and that stands for no other name.

    It is the name itself, or ends in a hash of the name: if a provider does not accept the name, or if the name ends as
    one with a hash does.
    """
    if _ACCEPTED.fullmatch(name) and not _ENDS_IN_HASH.search(name):
        return name
    return _with_hash(_plain(name), name)


def _plain(name: str) -> str:
    """Return a name with `_` in place of what is not accepted; it may be too long, or empty."""
    plain = _NOT_ACCEPTED.sub("_", name)
    return f"_{plain}" if plain and not _ACCEPTED.match(plain) else plain


def _with_hash(plain: str, name: str) -> str:
    digits = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    return f"{plain[: _MAX_LENGTH - _DIGITS - 1]}_{digits}"
