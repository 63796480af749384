"""A key for keyed digests, which never leaves its process."""

from __future__ import annotations

import hmac
from typing import Any, ClassVar, Final

from traced_tools.errors import ConfigurationError

LEAST_KEY: Final = 16
"""The minimum length of a key in bytes."""


class SecretKey:
    """A key for HMAC-SHA-256.

    Args:
        secret: at least 16 bytes, best 32 random ones.

    Attributes:
        id: 16 hexadecimal digits that identify the key and reveal nothing about it.

    Raises:
        ConfigurationError: for a key that is too short.
    """

    __slots__ = ("_secret", "id")

    _purpose: ClassVar[str]

    def __init__(self, secret: bytes) -> None:
        if len(secret) < LEAST_KEY:
            raise ConfigurationError(
                f"the {self._purpose} must have at least {LEAST_KEY} bytes, it has {len(secret)}: "
                "`openssl rand -hex 32` prints a good one"
            )
        self._secret = secret
        self.id: Final = self._hmac(f"id\0traced_tools {self._purpose}".encode())[:16]

    def _hmac(self, message: bytes) -> str:
        return hmac.digest(self._secret, message, "sha256").hex()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(f"an object of {type(self).__name__} cannot be pickled: it would leave the process")
