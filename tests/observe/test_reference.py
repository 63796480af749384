"""The reference pages and the registry say what the table of names says, and the registry is one that Weaver can read.

The rules are those of https://github.com/open-telemetry/weaver/blob/main/schemas/semconv-syntax.md and of the policies
that hold for OpenTelemetry's own registry, https://github.com/open-telemetry/semantic-conventions/tree/main/policies.
"""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests import yaml_files
from tests.sweeps import check_each
from traced_tools.observe import names

DOCS = Path(__file__).parents[2] / "docs"
NAME = re.compile(r"[a-z][a-z0-9]*([._][a-z0-9]+)*")
SCALARS: dict[str, type] = {"string": str, "int": int, "double": float, "boolean": bool}


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_reference", DOCS / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def generated() -> dict[Path, str]:
    """Return what `make reference` would write; each process that collects the tests would else wait for it."""
    outputs: dict[Path, str] = generator().outputs()
    return outputs


FILES = sorted([*(DOCS / "reference").iterdir(), *DOCS.glob("*.yaml")])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_reference_pages_match_the_registry(path: Path) -> None:
    assert path.read_bytes() == generated()[path].encode(), f"{path.name} is out of date: run `make reference`"


def test_the_reference_comes_out_the_same_every_time() -> None:
    assert generator().outputs() == generated()


def test_the_reference_folder_has_no_outdated_file() -> None:
    assert {*FILES} == generated().keys()


# The registry, read.

REGISTRY: dict[str, Any] = yaml_files.load((DOCS / "telemetry-registry.yaml").read_text("utf-8"))
GROUPS: list[dict[str, Any]] = REGISTRY["groups"]
DEFINED: list[dict[str, Any]] = [
    each for group in GROUPS if group["type"] == "attribute_group" for each in group["attributes"]
]


def groups(kind: str) -> list[dict[str, Any]]:
    return [group for group in GROUPS if group["type"] == kind]


def annotations_of(group: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = group["annotations"]["traced_tools"]
    return found


def refs(group: dict[str, Any], level: str | None) -> tuple[str, ...]:
    """The attributes a signal carries always, or as content (`opt_in`)."""
    return tuple(each["ref"] for each in group["attributes"] if each.get("requirement_level") == level)


def words(attribute: dict[str, Any]) -> tuple[str, ...]:
    if isinstance(attribute["type"], dict):
        return tuple(member["value"] for member in attribute["type"]["members"])
    listed = attribute.get("note", "").startswith("Each is one of ")
    return tuple(chain.from_iterable(attribute["examples"])) if listed else ()


def test_the_registry_file_defines_all_attributes() -> None:
    found = {
        each["id"]: ("string" if isinstance(each["type"], dict) else each["type"], each["brief"], words(each))
        for each in DEFINED
    }
    assert found == {each.name: (each.type, each.brief, each.values) for each in names.ATTRIBUTES.values()}


def test_the_registry_file_has_all_spans() -> None:
    found = [
        (
            annotations_of(each)["span_name"],
            each["span_kind"],
            each["brief"],
            refs(each, None),
            set(refs(each, "opt_in")),
        )
        for each in groups("span")
    ]
    assert found == [(each.name, each.kind, each.brief, each.attributes, {*each.content}) for each in names.SPANS]


def test_the_registry_file_has_all_metrics() -> None:
    found = {
        each["metric_name"]: (
            *(each["instrument"], each["unit"], each["brief"], refs(each, None)),
            *(tuple(annotations_of(each).get("bucket_boundaries", ())), annotations_of(each).get("conventions")),
        )
        for each in groups("metric")
    }
    assert found == {
        each.name: (each.instrument, each.unit, each.brief, each.attributes, each.boundaries, each.only)
        for each in names.METRICS.values()
    }


def test_the_registry_file_has_all_events() -> None:
    found = {
        each["name"]: (annotations_of(each)["severity"], each["brief"], refs(each, None), set(refs(each, "opt_in")))
        for each in groups("event")
    }
    assert found == {
        each.name: (each.severity, each.brief, each.attributes, {*each.content}) for each in names.EVENTS.values()
    }


# The registry, by the rules.


def duplicates(found: Iterator[str]) -> list[str]:
    return [each for each, count in Counter(found).items() if count > 1]


def test_every_id_is_unique() -> None:
    assert duplicates(group["id"] for group in GROUPS) == []
    assert duplicates(each["id"] for each in DEFINED) == []
    for group in GROUPS:
        assert duplicates(each.get("ref", each.get("id")) for each in group["attributes"]) == [], group["id"]


def test_every_reference_leads_to_a_definition_and_every_definition_is_used() -> None:
    used = {each["ref"] for group in GROUPS for each in group["attributes"] if "ref" in each}
    assert used == {each["id"] for each in DEFINED}


def test_attributes_are_defined_in_the_registrys_own_groups_and_referenced_elsewhere() -> None:
    for group in GROUPS:
        own = group["id"].startswith("registry.")
        assert own == (group["type"] == "attribute_group")
        for each in group["attributes"]:
            assert set(each) <= (
                {"id", "type", "stability", "brief", "note", "examples"} if own else {"ref", "requirement_level"}
            )
            assert {"id", "type", "stability", "brief"} <= set(each) if own else "ref" in each


def test_every_group_has_the_fields_of_its_type_and_no_others() -> None:
    common = {"id", "type", "brief", "attributes"}
    signal = common | {"stability", "note", "annotations"}
    fields = {
        "attribute_group": common | {"display_name"},
        "span": signal | {"span_kind"},
        "metric": signal | {"metric_name", "instrument", "unit"},
        "event": signal | {"name"},
    }
    assert set(REGISTRY) == {"groups"}
    for group in GROUPS:
        assert set(group) == fields[group["type"]], group["id"]
        assert group.get("stability", "development") == "development"


def test_examples_are_there_where_they_must_be_and_of_the_attributes_type() -> None:
    def check(attribute: dict[str, Any]) -> None:
        kind = attribute["type"]
        assert ("examples" in attribute) == (kind in ("string", "string[]"))
        for example in attribute.get("examples", ()):
            values = example if kind == "string[]" else [example]
            assert isinstance(values, list)
            assert values
            assert all(type(value) is SCALARS[kind.removesuffix("[]")] for value in values)

    check_each({attribute["id"]: attribute for attribute in DEFINED}, check)


def test_the_members_of_a_list_are_unique_and_well_named() -> None:
    for each in DEFINED:
        if isinstance(each["type"], dict):
            members = each["type"]["members"]
            assert members
            assert (
                duplicates(member["id"] for member in members)
                == duplicates(member["value"] for member in members)
                == []
            )
            assert all(NAME.fullmatch(member["id"]) and member["stability"] == "development" for member in members)


def test_ids_follow_from_names() -> None:
    for group in GROUPS:
        if group["type"] == "span":
            assert re.fullmatch(rf"span\.[a-z0-9_.]+\.{group['span_kind']}", group["id"])
        elif group["type"] == "attribute_group":
            namespaces = {each["id"].partition(".")[0] for each in group["attributes"]}
            assert {group["id"]} == {f"registry.{namespace}" for namespace in namespaces}
        else:
            assert group["id"] == f"{group['type']}.{group.get('metric_name') or group.get('name')}"


SIGNALS: dict[str, Callable[[], list[str]]] = {
    "attributes": lambda: [each["id"] for each in DEFINED],
    "metrics": lambda: [each["metric_name"] for each in groups("metric")],
    "events": lambda: [each["name"] for each in groups("event")],
}


@pytest.mark.parametrize("kind", SIGNALS)
def test_names_are_well_formed_have_a_namespace_and_do_not_collide(kind: str) -> None:
    found = SIGNALS[kind]()
    for name in found:
        assert NAME.fullmatch(name)
        assert "." in name
        assert not [other for other in found if other.startswith(f"{name}.")], f"{name} is a name and a namespace"
    assert duplicates(re.sub(r"\W", "_", name) for name in found) == []


def test_everything_has_a_sentence_about_it() -> None:
    for each in (*GROUPS, *DEFINED):
        assert re.fullmatch(r"\S.*\.", each["brief"]), each["id"]


def test_structured_attributes_are_on_no_metric_and_content_is_no_label() -> None:
    structured = {each["id"] for each in DEFINED if each["type"] == "any"}
    content = {
        each["ref"]
        for group in (*groups("span"), *groups("event"))
        for each in group["attributes"]
        if "requirement_level" in each
    }
    assert structured <= content
    for group in groups("metric"):
        assert not content & {each["ref"] for each in group["attributes"]}


def test_units_are_those_that_ucum_or_braces_allow() -> None:
    for group in groups("metric"):
        assert re.fullmatch(r"s|By|\{[A-Za-z_]+\}", group["unit"]), group["id"]
        assert group["instrument"] in ("counter", "gauge", "histogram", "updowncounter")


# The pages, read.


def page(name: str) -> str:
    return (DOCS / "reference" / f"{name}.md").read_text("utf-8")


def sections(text: str, level: str) -> dict[str, str]:
    """The text under each heading of a level that is a name."""
    parts = re.split(rf"^{level} (.+)$", text, flags=re.MULTILINE)
    return {
        title.replace("`", ""): re.split(r"^##", body, flags=re.MULTILINE)[0]
        for title, body in zip(parts[1::2], parts[2::2], strict=True)
        if "`" in title
    }


def rows(text: str) -> list[list[str]]:
    """The cells of the tables in a text, without heads."""
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line[1:-1].split(" | ")] for line in lines]
    return [[name.strip("`"), *rest] for name, *rest in cells]


def listed(text: str, what: str) -> tuple[str, ...]:
    """The names after `what` in a list's item."""
    found = re.search(rf"^- {what}: (.*(?:\n  .*)*)", text, re.MULTILINE)
    return tuple(re.findall(r"`([^`]+)`", found[1])) if found else ()


def carried(section: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The attributes and the content attributes that a section lists."""
    plain, _, content = (rows(part) for part in section.partition("Content, only if it is captured:"))
    always, captured = tuple(row[0] for row in plain), tuple(row[0] for row in content)
    for name, kind, meaning in (*plain, *(row for row in content if row[0] not in always)):
        attribute = names.ATTRIBUTES[name]
        assert kind == attribute.type
        assert meaning.startswith(attribute.brief[:-1])
    return always, captured


def test_the_page_of_spans_describes_each_span_completely() -> None:
    found = sections(page("spans"), "##")
    titles = {f"{each.name}, server" if each.kind == "server" else each.name: each for each in names.SPANS}
    assert list(found) == list(titles)
    for title, each in titles.items():
        section = found[title]
        assert carried(section) == (each.attributes, each.content)
        assert each.brief in section
        assert f"- Kind: {each.kind}\n" in section
        assert re.search(r"^- Parent: .+", section, re.MULTILINE)


def test_the_page_of_events_describes_each_event_completely() -> None:
    found = sections(page("events"), "##")
    assert list(found) == list(names.EVENTS)
    for name, each in names.EVENTS.items():
        assert carried(found[name]) == (each.attributes, each.content)
        assert each.brief in found[name]
        assert f"- Severity: {each.severity}\n" in found[name]


def test_the_page_of_metrics_describes_each_metric_completely() -> None:
    found = sections(page("metrics"), "###")
    assert sorted(found) == sorted(names.METRICS)
    kinds = {"updowncounter": "Up-down counter"}
    when = {
        None: "with either conventions",
        "v0.1.0": "with the conventions v0.1.0",
        "v1.41.0": "with the conventions v1.41.0",
    }
    for name, each in names.METRICS.items():
        section = found[name]
        assert each.brief in section
        assert f"- {kinds.get(each.instrument, each.instrument.title())}, unit `{each.unit}`\n" in section
        assert f"- Emitted {when[each.only]}" in section
        assert listed(section, "Labels") == each.attributes
        buckets = re.search(r"^- Buckets up to: (.*(?:\n  .*)*)", section, re.MULTILINE)
        assert (tuple(map(float, buckets[1].split())) if buckets else ()) == each.boundaries


def test_the_page_of_metrics_has_each_prometheus_name() -> None:
    found = {name: listed(section, "In Prometheus") for name, section in sections(page("metrics"), "###").items()}
    assert found["gen_ai.execute_tool.duration"] == ("gen_ai_execute_tool_duration_seconds",)
    assert found["traced_tools.tool.decisions"] == ("traced_tools_tool_decisions_total",)
    assert found["traced_tools.tool.result.size"] == ("traced_tools_tool_result_size_bytes",)
    assert found["traced_tools.loop.cost"] == ("traced_tools_loop_cost",)
    assert found["traced_tools.usage.cost"] == ("traced_tools_usage_cost_total",)
    assert found["traced_tools.run.oldest_active"] == ("traced_tools_run_oldest_active_seconds",)
    assert found["traced_tools.run.active"] == ("traced_tools_run_active",)
    assert duplicates(chain.from_iterable(found.values())) == []


def test_the_page_of_attributes_describes_each_attribute_with_its_values() -> None:
    text = page("attributes")
    attributes, lists = text.split("## Closed lists")
    assert sorted(row[0] for row in rows(attributes)) == sorted(names.ATTRIBUTES)
    words = sections(lists, "###")
    for name, kind, meaning in rows(attributes):
        attribute = names.ATTRIBUTES[name]
        few = tuple(re.findall(r"`([^`]+)`", meaning)) if attribute.values else ()
        many = tuple(word for word, _ in rows(words.get(name, "")))
        assert kind == attribute.type
        assert few + many == attribute.values


def test_every_value_of_a_closed_list_has_a_meaning() -> None:
    for name, meanings in names.MEANINGS.items():
        assert tuple(meanings) == names.ATTRIBUTES[name].values
        assert all(meant.endswith(".") for meant in meanings.values())
    for attribute in names.ATTRIBUTES.values():
        assert len(attribute.values) <= 4 or attribute.name in names.MEANINGS


def test_content_is_marked_as_such_on_the_page_of_the_attributes() -> None:
    marked = {
        name for name, _, meaning in rows(page("attributes").split("## Closed lists")[0]) if "*Content" in meaning
    }
    content = {name for each in (*names.SPANS, *names.EVENTS.values()) for name in each.content}
    assert marked == content - {names.TOOL_NAME, names.CONTENT_TRUNCATED}


@pytest.mark.parametrize("path", [path for path in FILES if path.suffix == ".md"], ids=lambda path: path.name)
def test_the_pages_can_be_read_as_plain_text(path: Path) -> None:
    text = path.read_text("utf-8")
    for anchor in re.findall(r"attributes\.md#([\w]+)", text):
        assert anchor in {name.replace(".", "") for name in sections(page("attributes"), "###")}
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        lines = block.splitlines()
        assert (
            len({tuple(m.start() for m in re.finditer(r" \| ", line))[: lines[0].count(" | ")] for line in lines}) == 1
        )
    assert max(len(line) for line in text.splitlines() if not line.startswith("|")) <= 120
