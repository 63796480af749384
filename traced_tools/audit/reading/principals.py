"""Finds the calls on behalf of a principal, by its name or its pseudonym, without an index of names in the store."""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from typing import Any, Final

from traced_tools.audit.keys import load_key
from traced_tools.audit.reading.read_connection import StorePath, embedded_path
from traced_tools.audit.records import PRINCIPAL, printable_id
from traced_tools.core.identity import check_principal
from traced_tools.core.variables import AUDIT_KEY as KEY_VARIABLE
from traced_tools.errors import AuditError, ConfigurationError
from traced_tools.observe.content import pseudonym_by, pseudonym_with
from traced_tools.observe.settings import PSEUDONYM_KEY, read_pseudonym_key

_PSEUDONYM: Final = re.compile(r"pseudonym:[0-9a-f]{16}")


class PrincipalFilter:
    """Whether an intent is on behalf of one principal.

    Args:
        principal: the name, or a pseudonym such as `pseudonym:0123456789abcdef`, which needs no key.
        store: the store that is read: a path, or an SQLAlchemy URL.
        key: the key that the digests were made with. None for `TRACED_TOOLS_AUDIT_KEY`, else the key file beside an
            embedded store.

    Raises:
        ConfigurationError: for a blank or oversized principal, or for a name without the audit key and the key of the
            environment for pseudonyms.
    """

    def __init__(self, principal: str, store: StorePath, key: bytes | str | None = None) -> None:
        try:
            check_principal("principal", principal)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(str(error)) from None
        self._name = principal
        self._is_pseudonym = _PSEUDONYM.fullmatch(principal) is not None
        self._key_id: str | None = None
        self._digest = self._pseudonym = ""
        if not self._is_pseudonym:
            self._prepare(store, key, read_pseudonym_key())

    def _prepare(self, store: StorePath, key: bytes | str | None, pseudonym_key: bytes | None) -> None:
        missing = None
        try:
            audit_key = load_key(key, embedded_path(store))
            self._key_id, self._digest = audit_key.id, audit_key.content(self._name)["digest"]
        except ConfigurationError as error:
            missing = error
        if pseudonym_key is not None:
            self._pseudonym = pseudonym_with(pseudonym_key, self._name)
        elif missing is not None:
            raise ConfigurationError(
                f"the name of a principal can't be searched ({missing}). The key {PSEUDONYM_KEY} that the application "
                "had will do, too; without a key, search for the pseudonym"
            )

    def matches(self, intent: Mapping[str, Any]) -> bool:
        """Return whether the fields of an intent name the principal.

        Raises:
            AuditError: if the intent names a principal and another key is needed to compare it.
        """
        recorded = intent.get(PRINCIPAL)
        if not isinstance(recorded, dict):
            return False
        digest, pseudonym = str(recorded.get("digest")), recorded.get("pseudonym")
        if self._is_pseudonym:
            return self._name in (pseudonym, pseudonym_by(digest))
        if self._name == recorded.get("text"):
            return True
        if recorded.get("key_id") == self._key_id:
            return hmac.compare_digest(digest.encode(errors="replace"), self._digest.encode())
        if self._pseudonym and isinstance(pseudonym, str):
            return self._pseudonym == pseudonym
        raise AuditError(
            f"wrong audit key: the principal of a call of run {printable_id(intent.get('run_id'))} was recorded with "
            f"key {printable_id(recorded.get('key_id'))}, not key {self._key_id or 'none'}. Set {KEY_VARIABLE} to that "
            "key, search for the pseudonym, or exclude the call with the other filters"
        )
