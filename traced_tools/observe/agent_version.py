"""The version of an agent: digests of what a run is sent, and the version that stands for all of it."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from traced_tools.observe.settings import read_or_warn, read_pseudonym_key

_DIGITS: Final = 16
"""How many hexadecimal digits a digest has."""


class AgentDigests(NamedTuple):
    """What an agent is sent in a run, as digests; empty for what it has none of.

    Attributes:
        instructions: the digest of the instructions.
        tools: the digest of the definitions of the tools.
        policy: the digest of the policies.
    """

    instructions: str
    tools: str
    policy: str

    @classmethod
    def of(cls, instructions: str, tools: str, policies: Sequence[str]) -> AgentDigests:
        """Return the digests of an agent.

        Args:
            instructions: the text of the instructions; empty for none.
            tools: the SHA-256 of the definitions of the tools, in hex; empty for no tools.
            policies: the digests of the policies, in the order of their advisors.
        """
        policy = _digest("\n".join(policies)) if len(policies) > 1 else "".join(policies)
        return cls(_digest_of_instructions(instructions) if instructions else "", tools[:_DIGITS], policy)

    @property
    def version(self) -> str:
        """The digest of all of it."""
        return _digest("\n".join(self))


@lru_cache(64)
def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]


@lru_cache(64)
def _digest_of_instructions(text: str) -> str:
    """Return the digest of instructions, made with the key of pseudonyms if the environment has it.

    Instructions may hold a name. Without the key, a reader of the rest of the text can find the name by guessing.
    """
    key = read_or_warn(read_pseudonym_key, "digests of instructions are made without a key")
    if key is None:
        return _digest(text)
    return hmac.digest(key, text.encode("utf-8", "surrogatepass"), "sha256").hex()[:_DIGITS]
