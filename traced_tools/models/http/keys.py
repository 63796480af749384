"""API keys: reads them from arguments or environment variables and checks their characters."""

from __future__ import annotations

import os

from traced_tools.core.checks import expect
from traced_tools.errors import ConfigurationError


def resolve_key(explicit_key: str | None, *variables: str, needed: bool) -> str:
    """Return `explicit_key`, else the value of the first set variable, else an empty text.

    Raises:
        ConfigurationError: if the key contains characters that a header can't contain, or if a key is `needed` and
            there is none. The message doesn't quote the key.
    """
    expect("api_key", explicit_key, (str, type(None)), "a str or None")
    key = explicit_key if explicit_key is not None else next(filter(None, map(os.environ.get, variables)), "")
    key = key.strip()  # a key read from a file ends with a line feed
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigurationError(f"the API key (api_key= or {variables[0]}) contains characters that no key has")
    if needed and not key:
        raise ConfigurationError(f"no API key: set {' or '.join(variables)}, or pass api_key=")
    return key
