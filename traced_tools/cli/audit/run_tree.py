"""Prints a run as a tree: compactions, changed tools, and calls: who wanted them and why, who decided, the outcomes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any, Final

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from traced_tools.audit.reading.queries import UNFINISHED
from traced_tools.audit.reading.read_connection import parsed
from traced_tools.audit.reading.reader import DAMAGED, AuditedCall, AuditedRun
from traced_tools.audit.records import AuditRecord, commits_to_text
from traced_tools.cli.audit.formatting import (
    as_text,
    decider_text,
    duration_text,
    escape,
    reason_text,
    state_text,
    time_text,
    tool_name,
    verdict_text,
)
from traced_tools.core.readable import readable_json

_LONG: Final = 2000
"""Characters of a stored content that are shown."""
_DIGEST: Final = 12
_ABOUT: Final = (
    ("agent", "agent"),
    ("conversation", "conversation_id"),
    ("parent run", "parent_run_id"),
    ("trace", "trace_id"),
)


def print_run(console: Console, run: AuditedRun, trace_url: str | None) -> None:
    """Print a run; `trace_url` is the URL of its trace, if known."""
    tree = Tree(Text(f"run {escape(run.run_id)}", "bold"), guide_style="dim")
    for line in (*_about(run, trace_url), *map(_compaction, run.compactions), *map(_changed_tools, run.tool_changes)):
        tree.add(line)
    for iteration, calls in groupby(run.calls, key=lambda call: call.iteration):
        branch = tree.add(Text(f"iteration {escape(iteration)}", "bold blue"))
        for call in calls:
            _add_call(branch, call)
    console.print(tree)


def _about(run: AuditedRun, trace_url: str | None) -> Iterator[Text]:
    for label, name in _ABOUT:
        if (value := run.shared_field(name)) is not None:
            yield _with_label(label, as_text(value))
    if run.principal is not None:
        yield _with_label("on behalf of", as_text(run.principal))
    if run.actors:
        yield _with_label("through", as_text(" > ".join(run.actors), most=_LONG))
    attributes = run.shared_field("attributes")
    for index, (key, value) in enumerate(attributes.items() if isinstance(attributes, dict) else ()):
        yield _with_label("" if index else "attributes", as_text(f"{key}=").append_text(as_text(value, most=_LONG)))
    if trace_url is not None:
        yield _with_label("", as_text(trace_url, most=_LONG))


def _compaction(record: AuditRecord) -> Text:
    """Return when a conversation was compacted, how and why, and the entry of the conversation that records it."""
    fields = parsed(record.body)
    if fields is None:
        return _with_label("compaction", _at(record).append("  ").append(DAMAGED, "bold red"))
    facts = [f"{escape(fields.get('covered'))} entries through {escape(fields.get('through'))}"]
    if "branch" in fields:
        facts.append(f"branch {escape(fields['branch'])}")
    facts.append(f"strategy {escape(fields.get('strategy'))}")
    facts.append(f"trigger {escape(fields.get('trigger'))}")
    if "tokens_before" in fields and "tokens_after" in fields:
        about = "about " if fields.get("tokens_estimated") is True else ""
        facts.append(f"{about}{escape(fields['tokens_before'])} -> {escape(fields['tokens_after'])} tokens")
    if fields.get("iteration"):
        facts.append(f"iteration {escape(fields['iteration'])}")
    facts.append(f"entry {escape(fields.get('entry_id'))}")
    return _with_label("compaction", _at(record).append("  ").append_text(Text(", ".join(facts))))


def _changed_tools(record: AuditRecord) -> Text:
    """Return which tools of a server differed from the pinned ones, and whether the run ended for that reason."""
    fields = parsed(record.body)
    changes = None if fields is None else fields.get("changes")
    if fields is None or not isinstance(changes, list):
        return _with_label("not as pinned", _at(record).append("  ").append(DAMAGED, "bold red"))
    facts = f"{escape(fields.get('source'))}: {escape(', '.join(map(str, changes)))}"
    refused = "; the run was refused" if fields.get("refused") is True else ""
    return _with_label("not as pinned", _at(record).append("  ").append(f"{facts}{refused}", "bold red"))


def _add_call(branch: Tree, call: AuditedCall) -> None:
    title = as_text(tool_name(call), "bold").append("  ").append_text(as_text(call.shared_field("call_id"), "dim"))
    node = branch.add(title.append("  ").append_text(_in_short(call)))
    for line in (*_intent(call), *_decision(call), *_outcome(call), *_conflicting(call)):
        node.add(line)


def _in_short(call: AuditedCall) -> Text:
    return verdict_text(call).append(f" {duration_text(call.fields('outcome'))}".rstrip(), "dim")


def _intent(call: AuditedCall) -> Iterator[Text]:
    if call.intent is None:
        yield Text("its intent is not in the store", "bold red")
        return
    fields = call.fields("intent")
    provenance = [fields.get("model"), fields.get("provider")]
    model_name = " of ".join(escape(name) for name in provenance if name is not None)
    yield _with_label("intent", _at(call.intent).append(f"  by {model_name}" if model_name else ""))
    if "requested_name" in fields:
        yield _with_label("asked for", _content(fields["requested_name"]))
    if "own_name" in fields:
        source = escape(fields.get("source"))
        yield _with_label("tool", Text(f"{escape(fields['own_name'])} of {source}"))
    yield _with_label("reason", _content(fields.get("reason")))
    yield _with_label("arguments", _content(fields.get("arguments")))
    if "requested_arguments" in fields:
        yield _with_label("as written", _content(fields["requested_arguments"]))
    if isinstance(changes := fields.get("pin_changes"), list):
        yield _with_label("not as pinned", Text(escape(", ".join(map(str, changes))), "bold red"))
    if not _is_stored(fields.get("arguments")) and (names := _argument_names(fields)):
        yield _with_label("names", Text(names))


def _argument_names(fields: dict[str, Any]) -> str:
    """Return the names of the arguments that the tool knows, and how many it does not."""
    names, unknown = fields.get("argument_names"), fields.get("unknown_arguments")
    listing = ", ".join(escape(name) for name in names) if isinstance(names, list) else ""
    more = f"{unknown} unknown" if isinstance(unknown, int) else ""
    return " and ".join(part for part in (listing, more) if part)


def _decision(call: AuditedCall) -> Iterator[Text]:
    if call.decision is None:
        yield _with_label("decision", Text("none is recorded", "yellow"))
        return
    for record in call.of_kind("decision"):
        yield from _decision_lines(record, parsed(record.body) or {})


def _decision_lines(record: AuditRecord, fields: dict[str, Any]) -> Iterator[Text]:
    decider, reason = decider_text(fields), reason_text(fields)
    suffix = (f" by {decider}" if decider else "") + (f" ({reason})" if reason else "")
    text = as_text(fields.get("decision", "damaged")).append(suffix)
    if fields.get("intent_late") is True:
        text.append("  LATE: the intent was not on record yet", "bold red")
    yield _with_label("decision", _at(record).append("  ").append_text(text))
    if "arguments" in fields:
        yield _with_label("ran with", _content(fields["arguments"]))
    evaluated = fields.get("evaluated")
    for verdict in evaluated if isinstance(evaluated, list) else ():
        if isinstance(verdict, dict):  # the store may hold anything there
            becomes, advisor, code = (escape(verdict.get(name)) for name in ("becomes", "advisor", "reason_code"))
            yield _with_label("evaluated", Text(f"{becomes} with {advisor} ({code})"))


def _outcome(call: AuditedCall) -> Iterator[Text]:
    if call.outcome is None:
        if call.state == UNFINISHED:
            yield _with_label("outcome", Text("UNFINISHED: no outcome is recorded", "bold yellow"))
        return
    for number, record in enumerate(call.of_kind("outcome")[:-1], 1):
        before = parsed(record.body) or {}
        yield _with_label(f"try {number}", _ended(record, as_text(before.get("outcome", DAMAGED)), before))
    fields = call.fields("outcome")
    yield _with_label("outcome", _ended(call.outcome, state_text(call), fields))
    if "result" in fields:
        yield _with_label("result", _content(fields["result"]))


def _ended(record: AuditRecord, text: Text, fields: dict[str, Any]) -> Text:
    facts = [escape(fields["error_type"])] if fields.get("error_type") not in (None, fields.get("outcome")) else []
    if duration := duration_text(fields):
        facts.append(f"after {duration}")
    if isinstance(attempts := fields.get("attempts"), int) and attempts > 1:
        facts.append(f"{attempts} attempts")
    return _at(record).append("  ").append_text(text).append("".join(f", {fact}" for fact in facts))


def _conflicting(call: AuditedCall) -> Iterator[Text]:
    """Yield the records that contradict the others, with their chain and number."""
    for record in call.conflicting:
        fields = parsed(record.body) or {}
        value = fields.get(record.kind)
        fact = f"  {record.kind}" + (f" {escape(value)}" if value is not None else "")
        location = f": record {record.sequence} of chain {escape(record.chain_id)}"
        yield Text("conflicting  ", "bold red").append_text(_at(record)).append(fact, "bold red").append(location)


def _with_label(label: str, text: Text) -> Text:
    return Text(f"{label:<12} ", "dim").append_text(text)


def _at(record: AuditRecord) -> Text:
    return Text(time_text(record, "milliseconds"), "dim")


def _content(content: object) -> Text:
    """Return the text of a field if it is stored, else its digest."""
    if not isinstance(content, dict):
        return Text("none was given", "dim")
    if _is_stored(content):
        cut = " (cut when it was stored)" if content.get("cut") else ""
        make_readable = readable_json if content.get("form") == "json" else escape
        return Text(make_readable(content["text"], _LONG)).append(cut, "dim")
    digest = escape(str(content.get("digest"))[:_DIGEST])
    state = "erased" if commits_to_text(content) else "not stored"
    return Text(f"{state} (digest {digest}, {escape(content.get('size'))} bytes)", "dim")


def _is_stored(content: object) -> bool:
    return isinstance(content, dict) and isinstance(content.get("text"), str)
