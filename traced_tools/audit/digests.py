"""Keyed digests of contents, which only a holder of the key can make or compare.

With a plain hash, short arguments could be found by trying all candidates. So the digest is HMAC-SHA-256 with a key. It
does not hide the length of a text, nor that two texts are equal. For JSON, the message is `json`, a zero byte and
RFC 8785 of the value. For other texts, and JSON that RFC 8785 does not cover, it is `text`, a zero byte and the text in
UTF-8.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any, Final, Literal

from traced_tools.audit.records import text_hash
from traced_tools.core.canonical import canonical_json
from traced_tools.core.secret_key import SecretKey

_SALT: Final = 32
"""The length of a text's salt in hexadecimal digits."""

ContentForm = Literal["json", "text"]


class AuditKey(SecretKey):
    """A key for the digests of contents.

    Args:
        secret: at least 16 bytes, best 32 random ones.

    Attributes:
        id: 16 hexadecimal digits that identify the key and reveal nothing about it.

    Raises:
        ConfigurationError: for a key that is too short.
    """

    __slots__ = ()

    _purpose = "audit key"

    def content(self, text: str, is_json: bool = False) -> dict[str, Any]:
        """Return the fields for a text that is not stored itself: `digest`, `form`, `size` (UTF-8 bytes) and `key_id`.

        `size` reveals the exact length even without the key, which distinguishes `yes` from `no`. Equal digests reveal
        equal contents.

        Args:
            text: the content.
            is_json: whether the digest shall be that of the value; what cannot be read as JSON gets that of its text.
        """
        canonical = canonical_json(text) if is_json else None
        form: ContentForm = "text" if canonical is None else "json"
        encoded_text = utf8(text)
        digest = self._digest(form, encoded_text if canonical is None else canonical)
        return {"digest": digest, "form": form, "size": len(encoded_text), "key_id": self.id}

    def committed(self, text: str, *, cut: bool) -> dict[str, Any]:
        """Return the fields for a text that is stored: `text`, `salt`, `text_hash`, and `cut` if it is cut.

        The salt is derived from the text, so two records of the same text are equal.

        Args:
            text: the text to store.
            cut: whether `text` is only the beginning of the content.
        """
        content: dict[str, Any] = {"text": text, "salt": self._digest("salt", utf8(text))[:_SALT]}
        if cut:
            content["cut"] = True
        return {**content, "text_hash": text_hash(content)}

    def matches(self, content: Mapping[str, Any], text: str) -> bool:
        """Whether `text` has the digest of a recorded content, with this key and in the recorded form.

        Raises:
            KeyError: if `content` does not have the fields that `content()` returns.
        """
        form = content["form"]
        message = canonical_json(text) if form == "json" else utf8(text)
        recorded = utf8(
            content["digest"]
        )  # as bytes, because the store may hold any text there, and compare_digest takes only ASCII text
        return message is not None and hmac.compare_digest(self._digest(form, message).encode(), recorded)

    def _digest(self, form: ContentForm | Literal["salt"], message: bytes) -> str:
        return self._hmac(utf8(form) + b"\0" + message)


def utf8(text: str) -> bytes:
    """Return a text's UTF-8 bytes, including those of lone surrogates, which models do write."""
    return text.encode("utf-8", "surrogatepass")
