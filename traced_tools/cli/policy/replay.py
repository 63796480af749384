"""Replays the calls of an audit trail against a policy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic_core import from_json

from traced_tools.audit.reading.reader import AuditedCall
from traced_tools.audit.records import RAN
from traced_tools.core.tool_definition import ToolAnnotations
from traced_tools.flow.flow import call as drive
from traced_tools.observe.names import UNKNOWN_TOOL
from traced_tools.policy.policy import Policy, Verdict
from traced_tools.policy.rule import CallFacts
from traced_tools.tools.toolset import SourceNames

Finding = Literal["changed", "unchanged", "not_replayed", "not_decided"]
"""How a recorded call compares: the policy decides otherwise; as recorded; a rule needs what is not stored; or
something before the policy ended the call, so no policy decides about it."""

_AFTER_POLICY: Final = (*RAN, "answered", "pending", "rejected")
"""The recorded decisions of calls that a policy let pass, or would have had to, if somebody approved."""


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
        lacks: what that rule needs and the trail does not store: `arguments` or `annotations`; else None.
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


def replay(policy: Policy, calls: Iterable[AuditedCall], advisor: str) -> Iterator[Replayed]:
    """Yield each call with what the policy decides about it.

    Args:
        policy: the policy.
        calls: the calls.
        advisor: the name of the policy advisor that took part in the recorded runs.
    """
    for each in calls:
        yield _replayed(policy, each, advisor)


def recorded_names(calls: Iterable[AuditedCall]) -> Mapping[str, SourceNames]:
    """Return the names of the tools that were called, by source."""
    names: defaultdict[str, tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
    for each in calls:
        intent, tool = each.fields("intent"), each.shared_field("tool")
        if tool != UNKNOWN_TOOL and isinstance(source := intent.get("source"), str):
            offered, own = names[source]
            offered.add(str(tool))
            own.add(str(intent.get("own_name", tool)))
    return {source: SourceNames(frozenset(offered), frozenset(own)) for source, (offered, own) in names.items()}


def _replayed(policy: Policy, call: AuditedCall, advisor: str) -> Replayed:
    decision = call.fields("decision")
    was = decision.get("decision")
    by_policy = was == "denied" and decision.get("advisor") == advisor
    if call.intent is None or not (was in _AFTER_POLICY or by_policy):
        return Replayed(call, "not_decided", was)
    verdict = drive(policy.decide(_facts(call)))
    if isinstance(verdict.error, _NotStoredError):
        assert verdict.rule is not None
        return Replayed(call, "not_replayed", was, rule=verdict.rule.id, lacks=str(verdict.error))
    becomes = _becomes(verdict, was)
    return Replayed(call, "unchanged" if becomes == was else "changed", was, becomes, verdict.code)


def _becomes(verdict: Verdict, was: str | None) -> str | None:
    """Return the decision with the policy, of a call whose approval and answer stay as they were."""
    if verdict.decision == "deny":
        return "denied"
    if verdict.decision == "require_approval":
        return "pending" if was in ("allowed", "denied") else was
    return "allowed" if was in ("denied", "pending", "rejected") else was


def _facts(call: AuditedCall) -> CallFacts:
    attributes = call.shared_field("attributes")
    intent = call.fields("intent")
    return CallFacts(
        tool=str(call.shared_field("tool")),
        source=str(intent.get("source")),
        agent=str(call.shared_field("agent")),
        attributes=attributes if isinstance(attributes, dict) else {},
        read_annotations=_no_annotations,
        read_arguments=lambda: _arguments(call),
        own_name=intent.get("own_name"),
    )


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
