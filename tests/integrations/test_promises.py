"""The published tables say of each framework what its tests prove."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.integrations.promises import DIFFERENCES, HAD, PROMISES

DOCS = Path(__file__).parents[2] / "docs"


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def promises() -> Iterator[str]:
    """The table of docs/any-loop.md: what is had on each framework."""
    yield row("", *HAD)
    yield row(*["---"] * (len(HAD) + 1))
    for promise in PROMISES:
        yield row(promise, *(had[promise] for had in HAD.values()))


def fields() -> Iterator[str]:
    """The table of docs/details/framework-fields.md: the fields that differ on each framework."""
    yield row("framework", "recorded in", "field", "why")
    yield row(*["---"] * 4)
    for framework, differences in DIFFERENCES.items():
        for field, why in differences.items():
            kind, _, name = field.rpartition(" ")
            yield row(framework, kind, f"`{name}`", why)


def test_the_table_of_promises_is_the_published_one() -> None:
    assert "\n".join(promises()) in (DOCS / "any-loop.md").read_text("utf-8")


def test_the_table_of_fields_is_the_published_one() -> None:
    assert "\n".join(fields()) in (DOCS / "details" / "framework-fields.md").read_text("utf-8")


def test_each_framework_has_all_promises_and_a_table_of_fields() -> None:
    assert HAD.keys() == DIFFERENCES.keys()
    assert {tuple(had) for had in HAD.values()} == {PROMISES}
