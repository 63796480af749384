"""The names of the environment variables of this package. Code that reads a variable takes its name from here."""

from __future__ import annotations

from typing import Final

AUDIT_KEY: Final = "TRACED_TOOLS_AUDIT_KEY"
AUDIT_STORE: Final = "TRACED_TOOLS_AUDIT_STORE"
DEBUG: Final = "TRACED_TOOLS_DEBUG"
DETAIL: Final = "TRACED_TOOLS_DETAIL"
DEV: Final = "TRACED_TOOLS_DEV"
GENAI_CONVENTIONS: Final = "TRACED_TOOLS_GENAI_CONVENTIONS"
MCP_CLIENT_SECRET: Final = "TRACED_TOOLS_MCP_CLIENT_SECRET"
MCP_TOKEN: Final = "TRACED_TOOLS_MCP_TOKEN"
OPENINFERENCE: Final = "TRACED_TOOLS_OPENINFERENCE"
PENDING_STORE: Final = "TRACED_TOOLS_PENDING_STORE"
PSEUDONYM_KEY: Final = "TRACED_TOOLS_PSEUDONYM_KEY"
STATE_KEY: Final = "TRACED_TOOLS_STATE_KEY"

PREFIX: Final = "TRACED_TOOLS_"
ALL: Final = frozenset(value for value in vars().copy().values() if isinstance(value, str) and value[:13] == PREFIX)
"""The names of all variables."""
