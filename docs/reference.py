"""Writes the reference pages, the registry of telemetry names and the JSON Schema of events.

To be run as `python docs/reference.py` from the repository's root.

The pages are for people; the registry is for programs. It has the shape that OpenTelemetry Weaver reads, in the first
version of its language: Weaver calls the second one (`file_format: definition/2`) unstable and complains of every file
that uses it. The language: https://github.com/open-telemetry/weaver/blob/main/schemas/semconv-syntax.md
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import chain, pairwise
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

import yaml

from docs.house import documented_names
from traced_tools.core.enums import Conventions
from traced_tools.events import json_schema
from traced_tools.observe import names
from traced_tools.observe.names.registry_types import Attribute, EventType, Metric, SpanType
from traced_tools.observe.settings import EARLIER, GENAI_CONVENTIONS, RELEASED
from traced_tools.otel.prometheus_names import prometheus_name

DOCS: Final = Path(__file__).parent
STABILITY: Final = "development"
CONTENT: Final = {name for each in (*names.SPANS, *names.EVENTS.values()) for name in each.content} - {
    names.CONTENT_TRUNCATED
}
"""The attributes that are content wherever they are."""

EXAMPLES: Final[dict[str, list[Any]]] = {
    names.PROVIDER_NAME: ["openai", "anthropic", "gcp.gemini"],
    names.REQUEST_MODEL: ["gpt-5", "claude-sonnet-4-5"],
    names.REQUEST_STOP_SEQUENCES: [["END"]],
    names.RESPONSE_ID: ["chatcmpl-123"],
    names.RESPONSE_MODEL: ["gpt-5-2025-08-07"],
    names.RESPONSE_FINISH_REASONS: [["stop"], ["tool_call"]],
    names.AGENT_ID: ["asst_5j66UpCpwteGg4YSxUnt7lPY", "urn:agent:travel"],
    names.MEMORY_QUERY: ["hotel in Oslo"],
    names.CONVERSATION_ID: ["conv_5j66UpCpwteGg4YSxUnt7lPY"],
    names.AGENT_NAME: ["travel"],
    names.AGENT_VERSION: ["2.1", "37f2a2a31d7bdaff", names.OTHER],
    names.INSTRUCTIONS_DIGEST: ["9f86d081884c7d65"],
    names.TOOLS_DIGEST: ["60303ae22b998861"],
    names.AGENT_POLICY_DIGEST: ["fd61a03af4f77d87"],
    names.TOOL_NAME: ["get_weather", names.UNKNOWN_TOOL],
    names.TOOL_CALL_ID: ["call_mszuSIzqtI65i1wAUOE8w5H4"],
    names.SERVER_ADDRESS: ["api.openai.com"],
    names.MCP_METHOD: ["tools/call", "tools/list", "initialize"],
    names.MCP_PROTOCOL_VERSION: ["2026-07-28", "2025-11-25"],
    names.JSONRPC_REQUEST_ID: ["7"],
    names.RPC_STATUS_CODE: ["-32602"],
    names.ERROR_TYPE: ["ValueError", "httpx.ReadTimeout", names.TIMEOUT, names.CANCELLED, names.OTHER],
    names.TOOL_DESCRIPTION: ["Look the weather up."],
    names.EVALUATION_NAME: ["polite", "Relevance"],
    names.EVALUATION_LABEL: ["pass", "fail"],
    names.EVALUATION_EXPLANATION: ["The answer names no source."],
    names.EXCEPTION_TYPE: ["ValueError", "httpx.ReadTimeout"],
    names.EXCEPTION_MESSAGE: ["nobody is called Ada"],
    names.EXCEPTION_STACKTRACE: ["Traceback (most recent call last): ..."],
    names.REQUEST_REASONING_LEVEL: ["low", "high"],
    names.FAILED_STEP: ["execute_tool book_hotel: ValueError", "chat gpt-5: traced_tools.errors.RateLimited"],
    names.TOOL_REQUESTED_NAME: ["get_wether"],
    names.RUN_ID: ["019316a2-9d5c-7d1e-8c1b-5b3f6c2a7e10"],
    names.ADVISOR_NAME: ["tool_calling", "memory"],
    names.TOOL_SOURCE: [names.LOCAL, "weather-server"],
    names.INTENT: ["The user asked about Lisbon."],
    names.EVENT_TYPE: ["tool_intended", "run_finished"],
    names.EVENT_ID: ["019316a2-9d60-7aa1-9e58-0d8c5a4be2f1"],
    names.EXPORTER_NAME: ["otlp.traces"],
    names.REASON_CODE: ["approval_required", "max_tool_calls"],
    names.POLICY_RULE: ["large-payments"],
    names.POLICY_DIGEST: ["9f86d081884c7d65"],
    names.EVALUATED_ADVISOR: ["evaluated_policy"],
    names.EVALUATED_CODE: ["large-payments", "policy_default"],
    names.EVALUATED_RULE: ["large-payments"],
    names.EVALUATED_BECOMES: ["denied", "pending"],
    names.EVALUATED_DIGEST: ["2c26b46b68ffc68f"],
    names.APPROVAL_BY: ["ana@example.com"],
    names.USER_ID: ["ana@example.com"],
    names.PRINCIPAL_ID: ["pseudonym:b16641dbd408ad83"],
    names.ACTORS: [["agent:planner", "tool:ask_billing"], ["client:Claude Desktop"]],
    names.TOOL_SEARCH_INDEX: ["keyword", "vector"],
    names.RETRIEVAL_QUERY: ["send an email"],
    names.COMPACTION_TRIGGER: ["tokens"],
    names.COMPACTION_STRATEGY: ["summary", "tool_results,summary"],
    names.AUDIT_CHAIN_ID: ["019316a2-9d5c-7d1e-8c1b-5b3f6c2a7e10"],
    names.AUDIT_HASH: ["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"],
}
"""Examples of the values of text attributes without a closed list of values, which the registry's schema requires."""

PARENTS: Final = {
    names.AGENT_SPAN: "the span that is current when the run starts, if any",
    names.ITERATION_SPAN: "the `advise` span of the advisor that runs the loop",
    names.HOOK_SPAN: "the run, `iteration`, or the outer `advise` span; for `advise_tool` the tool's span",
    names.CHAT_SPAN: "the innermost `advise` span, else `iteration`",
    names.EMBEDDINGS_SPAN: "the span that is current when the model is called, if any",
    names.EXECUTE_TOOL_SPAN: "`iteration`; of a served tool, `tools/call {tool}` of the server",
    names.REFUSE_TOOL_SPAN: "`iteration`; of a served tool, `tools/call {tool}` of the server",
    names.MCP_CALL_SPAN: "the tool's span",
    names.MCP_REQUEST_SPAN: "the span that is current when the request is made, such as the run",
    names.SERVED_CALL_SPAN: "the client's span, which the `_meta` of the request names, else the current span",
    names.SERVED_REQUEST_SPAN: "the client's span, which the `_meta` of the request names, else the current span",
    names.AWAIT_APPROVAL_SPAN: "the innermost `advise_tool` span, else the tool's span",
    names.RETRIEVAL_SPAN: "the `execute_tool` span of the search tool, or the innermost `advise_tool` span in it",
    names.SEARCH_MEMORY_SPAN: "the span that is current when memory is read, such as the hook of the memory advisor",
    names.UPSERT_MEMORY_SPAN: "the span that is current when memory is written, such as the hook of the memory advisor",
    names.COMPACT_MEMORY_SPAN: "the hook of the memory advisor",
}
"""Where each span hangs with every detail; with less it hangs from the next one further out that has a span."""

INSTRUMENTS: Final = {
    "counter": "Counter",
    "histogram": "Histogram",
    "updowncounter": "Up-down counter",
    "gauge": "Gauge",
}
CONVENTIONS: Final = {
    None: "with either conventions",
    RELEASED: f"with the conventions {RELEASED}",
    EARLIER: f"with the conventions {EARLIER}",
}
STUBS: Final = "Written by `make reference` from the stubs `__init__.pyi`: change it there."
NOTICE: Final = "Written by `make reference` from traced_tools/observe/names: change it there."


def main() -> None:
    """Write the pages and the registry."""
    for path, text in outputs().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def outputs() -> dict[Path, str]:
    """Return what each file holds."""
    return {
        DOCS / "telemetry-registry.yaml": registry(),
        DOCS / "reference" / "names.md": page(names_page(), STUBS),
        DOCS / "reference" / "spans.md": page(spans_page()),
        DOCS / "reference" / "metrics.md": page(metrics_page()),
        DOCS / "reference" / "events.md": page(events_page()),
        DOCS / "reference" / "attributes.md": page(attributes_page()),
        DOCS / "reference" / "events.schema.json": json.dumps(json_schema(), indent=2) + "\n",
    }


# The registry.


def registry() -> str:
    """Return the registry as YAML."""
    groups = [*attribute_groups(), *map(span, names.SPANS), *map(metric, names.METRICS.values())]
    groups += map(event, names.EVENTS.values())
    text = yaml.dump({"groups": groups}, Dumper=_Indented, sort_keys=False, width=100, allow_unicode=True)
    return f"# {NOTICE}\n# To check it: weaver registry check -r docs\n{text}"


class _Indented(yaml.SafeDumper):
    """Indents lists under their key."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        return super().increase_indent(flow, False)

    def ignore_aliases(self, data: object) -> bool:
        return True


def attribute_groups() -> Iterator[dict[str, Any]]:
    """Give the groups that define the attributes, one for each namespace."""
    for namespace, attributes in by_namespace().items():
        yield {
            "id": f"registry.{namespace}",
            "type": "attribute_group",
            "display_name": f"Attributes of {namespace}",
            "brief": f"The attributes that begin with `{namespace}.`.",
            "attributes": [definition(each) for each in attributes],
        }


def by_namespace() -> dict[str, list[Attribute]]:
    """Return the attributes by the first part of their names."""
    found: dict[str, list[Attribute]] = {}
    for attribute in names.ATTRIBUTES.values():
        found.setdefault(attribute.name.partition(".")[0], []).append(attribute)
    return found


def definition(attribute: Attribute) -> dict[str, Any]:
    """Return the definition of an attribute."""
    words, kind = attribute.values, attribute.type
    meanings = names.MEANINGS.get(attribute.name, {})
    one_of = words and kind == "string"
    found: dict[str, Any] = {
        "id": attribute.name,
        "type": {"members": [member(word, meanings) for word in words]} if one_of else kind,
    }
    found |= {"stability": STABILITY, "brief": attribute.brief}
    if attribute.only is not None:
        found |= {"note": f"Emitted {CONVENTIONS[attribute.only]}."}
    if words and not one_of:
        found |= {"note": f"Each is one of {listed(words)}.", "examples": [[word] for word in words]}
    elif kind in ("string", "string[]") and not one_of:
        found["examples"] = EXAMPLES[attribute.name]
    return found


def member(word: str, meanings: Mapping[str, str]) -> dict[str, str]:
    """Return the entry of a word in a list."""
    brief = {"brief": meanings[word]} if word in meanings else {}
    return {"id": word.lower(), "value": word, **brief, "stability": STABILITY}


def references(attributes: Sequence[str], content: Sequence[str] = ()) -> list[dict[str, str]]:
    """Return the attributes that a signal carries, those that are content as ones to opt in to."""
    return [{"ref": name} for name in attributes] + [{"ref": name, "requirement_level": "opt_in"} for name in content]


def span(each: SpanType) -> dict[str, Any]:
    """Return the group of a span."""
    return {
        "id": f"span.{names.SCOPE}.{each.name.partition(' ')[0].strip('{}').replace('/', '.')}.{each.kind}",
        "type": "span",
        "span_kind": each.kind,
        "stability": STABILITY,
        "brief": each.brief,
        "note": f"Its name is `{each.name}`. Its parent is {PARENTS[each]}.",
        "annotations": {names.SCOPE: {"span_name": each.name, "openinference_kind": each.openinference}},
        "attributes": references(each.attributes, each.content),
    }


def metric(each: Metric) -> dict[str, Any]:
    """Return the group of a metric."""
    annotations: dict[str, Any] = {"prometheus_name": prometheus_name(each)}
    if each.boundaries:
        annotations["bucket_boundaries"] = list(map(number, each.boundaries))
    if each.only is not None:
        annotations["conventions"] = each.only
    return {
        "id": f"metric.{each.name}",
        "type": "metric",
        "metric_name": each.name,
        "instrument": each.instrument,
        "unit": each.unit,
        "stability": STABILITY,
        "brief": each.brief,
        "note": f"Emitted {CONVENTIONS[each.only]}.",
        "annotations": {names.SCOPE: annotations},
        "attributes": references(each.attributes),
    }


def event(each: EventType) -> dict[str, Any]:
    """Return the group of an event."""
    return {
        "id": f"event.{each.name}",
        "type": "event",
        "name": each.name,
        "stability": STABILITY,
        "brief": each.brief,
        "note": " ".join((f"Its severity is {each.severity}.", *emitted(each.only))),
        "annotations": {names.SCOPE: {"severity": each.severity}},
        "attributes": references(each.attributes, each.content),
    }


def emitted(only: Conventions | None) -> list[str]:
    """Return the sentence about the conventions that have something; none if both have it."""
    return [] if only is None else [f"Emitted {CONVENTIONS[only]}."]


# The pages.


def page(lines: Iterable[str], notice: str = NOTICE) -> str:
    """Return a page with the notice under its title."""
    title, *rest = lines
    return "\n".join([title, "", f"<!-- {notice} -->", "", *rest, ""])


def names_page() -> Iterator[str]:
    """Give the lines of the page of the public names."""
    yield "# Names"
    yield "Import a name from the package that heads its table. `traced_tools` offers what a first service needs; the"
    yield "package that defines a name offers it as well. Each other name is in one table."
    yield from (
        "",
        "The lists are in files, `__init__.pyi`, that the packages read. A frozen application needs them as data: with",
    )
    yield "PyInstaller, pass `--collect-data traced_tools`."
    packages = documented_names()
    for package, modules in sorted(packages.items()):
        yield from ("", f"## {code(package)}", "")
        rows = [(code(name), described(modules[name], name)) for name in sorted(modules)]
        yield from table(("name", "what it is"), rows)


def described(module: str, name: str) -> str:
    """Return the first paragraph about a class or a function; of a constant, the text below it, else its value."""
    value = getattr(import_module(module), name)
    if inspect.isclass(value) or inspect.isfunction(value):
        return cell(inspect.getdoc(value) or "")
    for node, below in pairwise([*ast.parse(inspect.getsource(import_module(module))).body, ast.Pass()]):
        if isinstance(node, ast.Assign | ast.AnnAssign) and ast.unparse(node).startswith((f"{name} ", f"{name}:")):
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                return cell(str(below.value.value))
            return code(cell(ast.unparse(node).partition(" = ")[2]))
    raise LookupError(f"{module} does not define {name}")


def cell(text: str) -> str:
    """Return the first paragraph of `text` for a table."""
    return " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|")


def spans_page() -> Iterator[str]:
    """Give the lines of the page of the spans."""
    yield "# Spans"
    yield "Names in braces are placeholders. A span without an error has the status `UNSET`. A failed span has the"
    yield "status `ERROR`, and both `error.type` and the status description have the type of the error."
    yield "All attributes with their values: [attributes](attributes.md)."
    yield ""
    yield from table(("span", "description"), [(title(each), each.brief) for each in names.SPANS])
    for each in names.SPANS:
        yield from ("", f"## {title(each)}", "", each.brief, "")
        yield f"- Kind: {each.kind}"
        yield f"- Parent: {PARENTS[each]}"
        yield f"- OpenInference kind, if enabled: {code(each.openinference)}"
        yield from carried(each.attributes, each.content)


def title(each: SpanType) -> str:
    """Return the title of a span; those of an MCP server have the names of those of its client."""
    return f"{code(each.name)}, server" if each.kind == "server" else code(each.name)


def metrics_page() -> Iterator[str]:
    """Give the lines of the page of the metrics."""
    yield "# Metrics"
    yield f"The metrics of model calls have the names of the OpenTelemetry GenAI conventions {RELEASED}. A process with"
    yield f"`{GENAI_CONVENTIONS}={EARLIER}` uses those of {EARLIER}; no process uses both. See"
    yield "[conventions](../details/conventions.md)."
    yield ""
    yield "In Prometheus a histogram has the series `_bucket`, `_count` and `_sum`; labels have `_` instead of dots."
    yield "The meanings of the labels: [attributes](attributes.md)."
    for only, title in CONVENTIONS.items():
        chosen = [each for each in names.METRICS.values() if each.only == only]
        yield from ("", f"## {title.capitalize()}", "")
        yield from table(("metric", "description"), [(code(each.name), each.brief) for each in chosen])
        yield from chain.from_iterable(map(metric_section, chosen))


def metric_section(each: Metric) -> Iterator[str]:
    """Give the lines about a metric."""
    yield from ("", f"### {code(each.name)}", "", each.brief, "")
    yield f"- {INSTRUMENTS[each.instrument]}, unit {code(each.unit)}"
    yield f"- In Prometheus: {code(prometheus_name(each))}"
    yield f"- Emitted {CONVENTIONS[each.only]}"
    yield from item(f"Labels: {listed(each.attributes)}" if each.attributes else "No labels")
    if each.boundaries:
        yield from item(f"Buckets up to: {' '.join(str(number(bound)) for bound in each.boundaries)}")


def item(text: str) -> list[str]:
    """Return the lines of an item in a list."""
    return wrap(text, 110, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def events_page() -> Iterator[str]:
    """Give the lines of the page of the events."""
    yield "# Events"
    yield "Log records with an event name, emitted through the Logs API and only if the logger is enabled. The body is"
    yield "the event's name unless the description of the event says otherwise."
    yield "All attributes with their values: [attributes](attributes.md)."
    yield ""
    yield from table(("event", "description"), [(code(each.name), each.brief) for each in names.EVENTS.values()])
    for each in names.EVENTS.values():
        yield from ("", f"## {code(each.name)}", "", each.brief, "")
        yield f"- Severity: {each.severity}"
        yield from (f"- {note.rstrip('.')}" for note in emitted(each.only))
        yield from carried(each.attributes, each.content)


def attributes_page() -> Iterator[str]:
    """Give the lines of the page of the attributes."""
    yield "# Attributes"
    yield "Of [spans](spans.md), [metrics](metrics.md) and [events](events.md)."
    yield "A value of type `any` is JSON text on a span and the value itself on an event."
    yield "*Content* is emitted only if it is [captured](../content.md)."
    for namespace, attributes in by_namespace().items():
        yield from ("", f"## {code(namespace)}", "")
        yield from attributes_table([each.name for each in attributes])
    yield from ("", "## Closed lists")
    for name, words in names.MEANINGS.items():
        yield from ("", f"### {code(name)}", "", names.ATTRIBUTES[name].brief, "")
        yield from table(("word", "meaning"), [(code(word), meant) for word, meant in words.items()])


def carried(attributes: Sequence[str], content: Sequence[str]) -> Iterator[str]:
    """Give the lines about what a span or an event carries."""
    yield from ("", *attributes_table(attributes))
    if content:
        yield from ("", "Content, only if it is captured:", "", *attributes_table(content))


def attributes_table(attributes: Iterable[str]) -> Iterator[str]:
    """Give a table of attributes."""
    chosen = [names.ATTRIBUTES[name] for name in attributes]
    rows = [(code(each.name), each.type, meaning(each)) for each in chosen]
    return table(("attribute", "type", "meaning"), rows)


def meaning(attribute: Attribute) -> str:
    """Return what an attribute means, with the words it may hold if they are few."""
    if attribute.only is not None:
        return f"{attribute.brief} Emitted {CONVENTIONS[attribute.only]}."
    if not attribute.values:
        return f"{attribute.brief} *Content.*" if attribute.name in CONTENT else attribute.brief
    if attribute.name not in names.MEANINGS:
        return f"{attribute.brief[:-1]}: {listed(attribute.values)}."
    anchor = attribute.name.replace(".", "")
    return f"{attribute.brief[:-1]}: one of [{len(attribute.values)} values](attributes.md#{anchor})."


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Give the lines of a table whose columns are aligned, but for the last."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)][:-1]
    for row in (head, ["-" * width for width in [*widths, 3]], *rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        yield f"| {' | '.join([*cells, row[-1]])} |"


def number(value: float) -> float:
    """Return a whole number as one."""
    return int(value) if value.is_integer() else value


def listed(words: Sequence[str]) -> str:
    """Return words as code, with commas between them."""
    return ", ".join(map(code, words))


def code(text: str) -> str:
    """Return `text` as code."""
    return f"`{text}`"


if __name__ == "__main__":
    main()
