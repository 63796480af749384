"""Tool names as providers accept them: ASCII letters, digits, `_` and `-`, at most 64 of them, a letter or `_` first.

OpenAI and Anthropic refuse a request that holds any other name, Gemini also one that begins with a digit; real tools
are named with dots, slashes and letters of every script.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import sha256

_LONGEST = 64
_ACCEPTED = re.compile(rf"[A-Za-z_][A-Za-z0-9_-]{{0,{_LONGEST - 1}}}")
_NOT_ACCEPTED = re.compile(r"[^A-Za-z0-9_-]")
_DIGITS = 8


@lru_cache(maxsize=4096)  # each name of each request passes here
def wire_name(name: str) -> str:
    """Return the name a provider is told for the tool `name`: the name itself wherever it is accepted.

    In any other, each character that is not accepted becomes `_`, and `_` goes before a first that is no letter. Where
    that alone would lose what tells names apart (letters of other scripts, a name too long, nothing but dots), the name
    ends in digits of a hash of the whole.
    """
    if _ACCEPTED.fullmatch(name):
        return name
    plain = _NOT_ACCEPTED.sub("_", name)
    if plain and not _ACCEPTED.match(plain):
        plain = f"_{plain}"
    if name.isascii() and len(plain) <= _LONGEST and plain.strip("_"):
        return plain
    digits = sha256(name.encode()).hexdigest()[:_DIGITS]
    return f"{plain[: _LONGEST - _DIGITS - 1]}_{digits}"
