"""The keys that sign what leaves this process and comes back, such as the states of runs that wait."""

from __future__ import annotations

import os
from collections.abc import Sequence

from traced_tools.core.secret_key import SecretKey
from traced_tools.core.variables import STATE_KEY as KEY_VARIABLE


class StateKey(SecretKey):
    """A key for the digests of states; see `SecretKey`."""

    __slots__ = ()

    _purpose = "key of states"

    @classmethod
    def configured(cls, secrets: bytes | str | Sequence[bytes | str] | None) -> tuple[StateKey, ...]:
        """Return the keys of an application, of which the first one signs.

        Args:
            secrets: the keys, or a single one. None for those in the variable `TRACED_TOOLS_STATE_KEY`, which are
                separated by commas.
        """
        if secrets is None:
            secrets = [secret.strip() for secret in os.environ.get(KEY_VARIABLE, "").split(",") if secret.strip()]
        several = (secrets,) if isinstance(secrets, bytes | str) else secrets
        return tuple(cls(secret.encode() if isinstance(secret, str) else secret) for secret in several)

    def digest(self, canonical: bytes) -> str:
        """Return the HMAC of a canonical state, in hex."""
        return self._hmac(b"state\0" + canonical)
