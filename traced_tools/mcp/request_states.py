"""The `requestState` of calls that wait for the answer of a client: signed, for one use, and for a limited time."""

from __future__ import annotations

import hmac
import json
import os
import time
from collections.abc import Sequence
from typing import Final

from traced_tools.core.state_key import StateKey

LIFETIME: Final = 600
"""Seconds in which the user of a client must answer."""


class RequestStates:
    """Makes states, and checks those that clients send back.

    A state consists of the id of a key, the time when it expires, a random number, and an HMAC over these and over what
    the state is for. So it holds nothing of the call.

    Args:
        keys: the keys, of which the first one signs. Without any, a random key, which only this process knows.
    """

    def __init__(self, keys: Sequence[StateKey]) -> None:
        self._keys = tuple(keys) or (StateKey(os.urandom(32)),)
        self._redeemed: dict[str, int] = {}

    def issue(self, subject: Sequence[str | None]) -> str:
        """Return a new state.

        Args:
            subject: what it is for.
        """
        key, expires, number = self._keys[0], int(time.time()) + LIFETIME, os.urandom(16).hex()
        return f"{key.id}.{expires}.{number}.{_mac(key, expires, number, subject)}"

    def issued(self, state: str) -> bool:
        """Return whether `state` has the form of a state of these keys, and not one of another server."""
        key_id, *rest = state.split(".")
        return len(rest) == 3 and any(key.id == key_id for key in self._keys)

    def redeem(self, state: str, subject: Sequence[str | None]) -> bool:
        """Return whether `state` is one for `subject` that was not redeemed before; it is spent then."""
        now = int(time.time())
        try:
            key_id, expiry, number, mac = state.split(".")
            expires = int(expiry)
            key = next(candidate for candidate in self._keys if candidate.id == key_id)
        except (ValueError, StopIteration):
            return False
        expected = _mac(key, expires, number, subject)
        if not hmac.compare_digest(mac.encode("utf-8", "surrogatepass"), expected.encode()) or expires <= now:
            return False
        self._redeemed = {nonce: until for nonce, until in self._redeemed.items() if until > now}
        if number in self._redeemed:
            return False
        self._redeemed[number] = expires
        return True


def _mac(key: StateKey, expires: int, number: str, subject: Sequence[str | None]) -> str:
    return key.digest(json.dumps(["mcp", key.id, expires, number, *subject]).encode())
