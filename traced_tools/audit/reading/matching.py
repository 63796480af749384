"""Proves by a digest whether a text is the recorded content of a call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

from traced_tools.audit.digests import AuditKey
from traced_tools.audit.keys import load_key
from traced_tools.audit.reading import queries
from traced_tools.audit.reading.queries import Key
from traced_tools.audit.reading.read_connection import ReadConnection, StorePath, embedded_path, open_for_reading
from traced_tools.audit.reading.reader import calls_of
from traced_tools.audit.records import printable_id
from traced_tools.core.canonical import canonical_json
from traced_tools.errors import AuditError, ConfigurationError

ContentName = Literal["arguments", "requested_arguments", "result", "reason", "requested_name", "by", "principal"]
"""The contents of a call that are recorded, at least as a digest."""
_PLACES: Final[Mapping[ContentName, tuple[tuple[str, ContentName], ...]]] = {
    "arguments": (("decision", "arguments"), ("intent", "arguments")),
    "requested_arguments": (("intent", "requested_arguments"), ("intent", "arguments")),
    "reason": (("intent", "reason"),),
    "requested_name": (("intent", "requested_name"),),
    "by": (("decision", "by"),),
    "principal": (("intent", "principal"),),
    "result": (("outcome", "result"),),
}
"""The record that has a content, and its name there. The first one is recorded only if it differs from the second."""


class UndecidableError(AuditError):
    """Raised when a JSON text differs from the recorded text but may have the same value."""


def match(
    store: StorePath,
    call_id: str,
    text: str,
    *,
    content: ContentName = "arguments",
    run_id: str | None = None,
    iteration: int | None = None,
    key: bytes | str | None = None,
) -> bool:
    """Return whether `text` is the recorded content of a call.

    Args:
        store: a path, or an SQLAlchemy URL.
        call_id: the call's id.
        text: the text to compare. JSON is compared by its value, however it is written.
        content: which content of the call. `arguments` are the arguments that the tool ran with, or would have run
            with: an advisor, or who approved the call, may have changed them. `requested_arguments` are those that the
            model wrote. `result` is the result of the last time the tool finished. `by` is the name of who decided,
            `principal` the name of who asked.
        run_id: the call's run; required if several calls have this id.
        iteration: the iteration of the loop, from 1; required if several calls of the run have this id.
        key: the key that the digests were made with. None for `TRACED_TOOLS_AUDIT_KEY`, else the key file beside an
            embedded store.

    Raises:
        AuditError: if the store cannot be read, has no such call or several, or has no digest of this content, if the
            digest was made with another key, or if two JSON texts differ and the recorded one has no canonical form,
            so that they may have the same value.
        ConfigurationError: for an unknown content, or if there is no key.
    """
    if content not in get_args(ContentName):
        raise ConfigurationError(f"content must be one of {', '.join(get_args(ContentName))}")
    audit_key = load_key(key, embedded_path(store))
    with open_for_reading(store) as opened_store:
        call = only_call(opened_store, call_id, run_id, iteration)
        recorded = _recorded_content(opened_store, call, content)
    return _matches(audit_key, recorded, content, text)


def only_call(store: ReadConnection, call_id: str, run_id: str | None, iteration: int | None) -> Key:
    """Return the call with this id; raise `AuditError` if there is none, or several."""
    rows = store.rows(queries.intents_called(call_id, run_id))
    keys = dict.fromkeys((row[0], row[1], row[2]) for row in rows)  # two audit advisors record a call twice
    calls = [call for call in keys if iteration in (None, call[1])]
    if len(calls) == 1:
        return calls[0]
    if not calls:
        scope = "" if run_id is None else " in this run"
        raise AuditError(f"the audit store has no call {printable_id(call_id)}{scope}")
    places = "; ".join(f"run {printable_id(run)} iteration {iteration}" for run, iteration, _ in calls[:5])
    more = f" and {len(calls) - 5} more" if len(calls) > 5 else ""
    raise AuditError(
        f"{len(calls)} calls have the id {printable_id(call_id)}: {places}{more}; "
        "pass the run id and iteration to select one"
    )


def _recorded_content(store: ReadConnection, call: Key, content: ContentName) -> dict[str, Any]:
    """Return a call's content as its effective record has it."""
    for audited_call in calls_of(store, [call]).values():
        for kind, name in _PLACES[content]:
            recorded = audited_call.fields(kind).get(name)
            if isinstance(recorded, dict) and all(isinstance(recorded.get(part), str) for part in _REQUIRED):
                return recorded
    raise AuditError(f"this call has no recorded {content.replace('_', ' ')}")


_REQUIRED: Final = ("digest", "form", "key_id")


def _matches(key: AuditKey, recorded: dict[str, Any], content: ContentName, text: str) -> bool:
    if recorded["key_id"] != key.id:
        raise AuditError(
            f"wrong audit key: the digest of this call's {content.replace('_', ' ')} was made with key "
            f"{printable_id(recorded['key_id'])}, not key {key.id}"
        )
    matches = key.matches(recorded, text)
    if not matches and recorded["form"] == "text" and _may_mean_the_same(content, text):
        raise UndecidableError(
            f"the digest of this call's {content.replace('_', ' ')} is that of a text that is not JSON or has no "
            "canonical form (a repeated key, an integer beyond 2**53): only the exact text can be compared, and this "
            "is another text"
        )
    return matches


def _may_mean_the_same(content: ContentName, text: str) -> bool:
    """Whether a text that differs from the recorded one may have the same JSON value. Many results are not JSON."""
    if content == "result":
        return _is_json(text) and canonical_json(text) is None
    return content in ("arguments", "requested_arguments") and _is_json(text)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
