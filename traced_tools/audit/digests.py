"""What is told of a content that is not stored: a digest that only a holder of the key can make or compare.

A plain hash of short arguments is as good as the arguments, since all candidates can be tried. So the digest is
HMAC-SHA-256 under a key. It does not hide how long a content is, nor which contents are equal. The message is `json`,
a zero byte and RFC 8785 of the value, whatever way the JSON was written; or `text`, a zero byte and the text in UTF-8,
for what is no JSON that RFC 8785 knows.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

import rfc8785

from traced_tools.audit.records import text_hash
from traced_tools.core.canonical import canonical_json
from traced_tools.errors import ConfigurationError

if TYPE_CHECKING:
    from traced_tools.core.tool_definition import ToolDefinition

LEAST_KEY: Final = 16
"""Bytes a key must have."""
_DIGEST: Final = "sha256"
_SALT: Final = 32
"""Hexadecimal digits of the salt of a text."""
_KEY_ID: Final = b"id\0traced_tools audit key"

ContentForm = Literal["json", "text"]


class AuditKey:
    """A key for the digests of contents.

    Args:
        secret: at least 16 bytes, best 32 random ones.

    Attributes:
        id: 16 hexadecimal digits that tell keys apart and tell nothing about them.

    Raises:
        ConfigurationError: for a key that is too short.
    """

    __slots__ = ("_secret", "id")

    def __init__(self, secret: bytes) -> None:
        if len(secret) < LEAST_KEY:
            raise ConfigurationError(
                f"the audit key must have at least {LEAST_KEY} bytes, it has {len(secret)}: "
                "`openssl rand -hex 32` prints a good one"
            )
        self._secret = secret
        self.id: Final = hmac.digest(secret, _KEY_ID, _DIGEST).hex()[:16]

    def content(self, text: str, is_json: bool = False) -> dict[str, Any]:
        """Return what a record tells of a content: `digest`, `form`, `size` (bytes of its UTF-8) and `key_id`.

        Without the key, `size` still reveals the exact length, which tells `yes` from `no`, and equal digests reveal
        equal contents.

        Args:
            text: the content.
            is_json: whether the digest shall be that of the value; what cannot be read as JSON gets that of its text.
        """
        canonical = canonical_json(text) if is_json else None
        form: ContentForm = "text" if canonical is None else "json"
        written = utf8(text)
        digest = self._digest(form, written if canonical is None else canonical)
        return {"digest": digest, "form": form, "size": len(written), "key_id": self.id}

    def committed(self, text: str, *, cut: bool) -> dict[str, Any]:
        """Return what a record stores of a content's text, so that it can be erased: `text`, `salt`, `text_hash`.

        The salt is derived from the text, so that two records of the same text are equal.

        Args:
            text: what is stored of the content.
            cut: whether `text` is only the beginning; the record then has `cut`.
        """
        told: dict[str, Any] = {"text": text, "salt": self._digest("salt", utf8(text))[:_SALT]}
        if cut:
            told["cut"] = True
        return {**told, "text_hash": text_hash(told)}

    def matches(self, content: Mapping[str, Any], text: str) -> bool:
        """Whether `text` is the content that a record tells of, by this key and in the form that was recorded.

        Raises:
            KeyError: when `content` is not what `content()` returns.
        """
        form = content["form"]
        message = canonical_json(text) if form == "json" else utf8(text)
        recorded = utf8(content["digest"])  # as bytes, since whoever can write a store can put any text there
        return message is not None and hmac.compare_digest(self._digest(form, message).encode(), recorded)

    def _digest(self, form: ContentForm | Literal["salt"], message: bytes) -> str:
        return hmac.digest(self._secret, utf8(form) + b"\0" + message, _DIGEST).hex()

    def __repr__(self) -> str:
        return f"AuditKey(id={self.id!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("an AuditKey cannot be pickled: it would leave the process")


def definition_digest(definition: ToolDefinition) -> str:
    """Return the plain SHA-256, in hex, of RFC 8785 of a tool's `name`, `description` and `input_schema`.

    A definition is no secret, so anybody may compare it. One that RFC 8785 does not know (such as an integer beyond
    2**53 in its schema) is taken as JSON with sorted keys and without blanks.
    """
    told: dict[str, Any] = {
        "name": definition.name,
        "description": definition.description,
        "input_schema": definition.input_schema,
    }
    try:
        canonical = rfc8785.dumps(told)
    except (ValueError, RecursionError):
        canonical = json.dumps(told, sort_keys=True, separators=(",", ":"), default=_type_name).encode()
    return hashlib.sha256(canonical).hexdigest()


def utf8(text: str) -> bytes:
    """Return a text's bytes, lone surrogates included, which models do write."""
    return text.encode("utf-8", "surrogatepass")


def _type_name(value: object) -> str:
    return type(value).__name__
