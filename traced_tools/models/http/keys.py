"""API keys: where they come from, and that they look like one."""

from __future__ import annotations

import os

from traced_tools.core.checks import expect
from traced_tools.errors import ConfigurationError


def resolve_key(given: str | None, *variables: str, needed: bool) -> str:
    """Return the key that was given, else that of the first variable that holds one, else nothing.

    Raises:
        ConfigurationError: for a key that cannot stand in a header, which is not quoted, and for none where one is
            `needed`.
    """
    expect("api_key", given, (str, type(None)), "a str or None")
    key = given if given is not None else next(filter(None, map(os.environ.get, variables)), "")
    key = key.strip()  # a key from a file ends in a line feed
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigurationError(f"the API key (api_key= or {variables[0]}) holds characters that no key has")
    if needed and not key:
        raise ConfigurationError(f"there is no API key: set {' or '.join(variables)}, or pass api_key=")
    return key
