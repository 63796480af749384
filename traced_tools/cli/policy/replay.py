"""Replays the calls of an audit trail against a policy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic_core import from_json

from traced_tools.audit.digests import AuditKey
from traced_tools.audit.reading.reader import AuditedCall
from traced_tools.audit.records import RAN
from traced_tools.core.tool_definition import ToolAnnotations
from traced_tools.flow.flow import call as drive
from traced_tools.observe.names import UNKNOWN_TOOL
from traced_tools.policy.policy import Policy, Verdict
from traced_tools.policy.rule import WILDCARD, CallFacts, no_attributes
from traced_tools.tools.toolset import SourceNames

Finding = Literal["changed", "unchanged", "not_replayed", "not_decided"]
"""How a recorded call compares: the policy decides otherwise; as recorded; a rule needs a text that is not stored; or
something before the policy ended the call, so no policy decides about it."""

_AFTER_POLICY: Final = (*RAN, "answered", "pending", "rejected")
"""The recorded decisions of calls that a policy let pass, or would have had to let pass after an approval."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """A recorded call and what the policy decides about it.

    Attributes:
        call: the call.
        finding: how the two compare.
        was: the recorded decision; None if there is none.
        becomes: the decision with the policy; None if it is not known.
        code: the reason code that the policy gives; None if it is not known.
        rule: the id of the rule that could not be replayed; None if the call was replayed or not decided.
        lacks: what that rule needs and the trail does not store: `arguments`, `annotations`, `principal` or `principal
            attributes`; else None.
    """

    call: AuditedCall
    finding: Finding
    was: str | None
    becomes: str | None = None
    code: str | None = None
    rule: str | None = None
    lacks: str | None = None


class _NotStoredError(Exception):
    """What a rule needs of a call is not in the trail."""


def replay(policy: Policy, calls: Iterable[AuditedCall], advisor: str, key: AuditKey | None) -> Iterator[Replayed]:
    """Yield each call with what the policy decides about it.

    Args:
        policy: the policy.
        calls: the calls.
        advisor: the name of the policy advisor that took part in the recorded runs.
        key: the key of the digests, with which principals are compared whose names are not stored; None if there is
            none.
    """
    for call in calls:
        yield _replay_call(policy, call, advisor, key)


def recorded_names(calls: Iterable[AuditedCall]) -> Mapping[str, SourceNames]:
    """Return the names of the tools that were called, by source."""
    names: defaultdict[str, tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
    for call in calls:
        intent, tool = call.fields("intent"), call.shared_field("tool")
        if tool != UNKNOWN_TOOL and isinstance(source := intent.get("source"), str):
            offered, own_names = names[source]
            offered.add(str(tool))
            own_names.add(str(intent.get("own_name", tool)))
    return {source: SourceNames(frozenset(offered), frozenset(own)) for source, (offered, own) in names.items()}


def _replay_call(policy: Policy, call: AuditedCall, advisor: str, key: AuditKey | None) -> Replayed:
    decision = call.fields("decision")
    recorded = decision.get("decision")
    by_policy = recorded == "denied" and decision.get("advisor") == advisor
    if call.intent is None or not (recorded in _AFTER_POLICY or by_policy):
        return Replayed(call, "not_decided", recorded)
    verdict = drive(policy.decide(_facts(call, key)))
    if isinstance(verdict.error, _NotStoredError):
        assert verdict.rule is not None
        return Replayed(call, "not_replayed", recorded, rule=verdict.rule.id, lacks=str(verdict.error))
    becomes = _becomes(verdict, recorded)
    return Replayed(call, "unchanged" if becomes == recorded else "changed", recorded, becomes, verdict.code)


def _becomes(verdict: Verdict, recorded: str | None) -> str | None:
    """Return the decision with the policy, of a call whose approval and answer stay as they were."""
    if verdict.decision == "deny":
        return "denied"
    if verdict.decision == "require_approval":
        return "pending" if recorded in ("allowed", "denied") else recorded
    return "allowed" if recorded in ("denied", "pending", "rejected") else recorded


@dataclass(frozen=True, slots=True)
class _RecordedFacts(CallFacts):
    """What a trail has of a call.

    Attributes:
        digests: the content of the principal if its text is not known; None if it is, or if there is no principal.
        key: the key of the digests; None if there is none.
    """

    digests: Mapping[str, Any] | None = None
    key: AuditKey | None = None

    def has_principal(self, patterns: Sequence[str]) -> bool:
        """Return whether the run has a principal that matches; raise `_NotStoredError` if that is not known."""
        if self.digests is None:
            return super(_RecordedFacts, self).has_principal(patterns)
        answers = [self._has_principal(pattern) for pattern in patterns]
        if True not in answers and None in answers:
            raise _NotStoredError("principal")
        return True in answers

    def _has_principal(self, pattern: str) -> bool | None:
        """Return whether the principal, of which the trail has a digest, matches; None if that is not known."""
        if not pattern.strip("*"):
            return True
        if pattern.strip("*") == "?":  # at least one character
            is_blank = self._is("")
            return None if is_blank is None else not is_blank
        return self._is(pattern) if not WILDCARD.search(pattern) else None

    def _is(self, principal: str) -> bool | None:
        if self.key is None or self.digests is None or self.digests.get("key_id") != self.key.id:
            return None
        try:
            return self.key.matches(self.digests, principal)
        except (KeyError, TypeError, AttributeError):  # the store may hold anything there
            return None


def _facts(call: AuditedCall, key: AuditKey | None) -> CallFacts:
    attributes = call.shared_field("attributes")
    intent = call.fields("intent")
    recorded = intent.get("principal")
    principal = _stored_text(recorded, key)
    return _RecordedFacts(
        tool=str(call.shared_field("tool")),
        source=str(intent.get("source")),
        agent=str(call.shared_field("agent")),
        attributes=attributes if isinstance(attributes, dict) else {},
        read_annotations=_no_annotations,
        read_arguments=lambda: _arguments(call),
        own_name=intent.get("own_name"),
        principal=principal,
        read_principal=_no_principal_attributes if recorded is not None else no_attributes,
        digests=recorded if principal is None and isinstance(recorded, dict) else None,
        key=key,
    )


def _stored_text(content: object, key: AuditKey | None) -> str | None:
    """Return the text of a content if it is stored, and the record does not show that it was cut or redacted."""
    text = content.get("text") if isinstance(content, dict) and not content.get("cut") else None
    if not isinstance(content, dict) or not isinstance(text, str):
        return None
    if key is not None and content.get("key_id") == key.id:
        return text if key.matches(content, text) else None
    return text if content.get("size") in (None, len(text.encode("utf-8", "surrogatepass"))) else None


async def _no_principal_attributes() -> Mapping[str, Any]:
    raise _NotStoredError("principal attributes")


def _no_annotations() -> ToolAnnotations:
    raise _NotStoredError("annotations")


def _arguments(call: AuditedCall) -> Mapping[str, Any]:
    """Return the arguments that the tool ran with, or would have; raise `_NotStoredError` if they are not stored.

    A text that is cut, or has another size than the arguments had, such as that of a redactor, is not what was decided
    about.
    """
    content = call.fields("decision").get("arguments") or call.fields("intent").get("arguments")
    if not isinstance(content, dict) or content.get("cut"):
        raise _NotStoredError("arguments")
    text = content.get("text")
    if not isinstance(text, str) or len(text.encode("utf-8", "surrogatepass")) != content.get("size"):
        raise _NotStoredError("arguments")
    try:
        value = from_json(text)
    except ValueError:
        raise _NotStoredError("arguments") from None
    if not isinstance(value, dict):
        raise _NotStoredError("arguments")
    return value
