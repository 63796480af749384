"""Headers that commands send to servers."""

from __future__ import annotations

import os

from traced_tools.errors import ConfigurationError


def read_header(option: str) -> tuple[str, str]:
    """Return a header; its value is in the environment, because everyone on the machine can read the command line."""
    name, _, variable = option.partition("=")
    if not name or not variable:
        raise ConfigurationError("--header must be NAME=VARIABLE, such as Authorization=MCP_AUTHORIZATION")
    if variable not in os.environ:
        raise ConfigurationError(f"--header {name!a}: there is no such environment variable; pass its name, no value")
    return name, os.environ[variable]
