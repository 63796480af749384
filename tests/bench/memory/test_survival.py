"""The facts that survive compactions, as the docs state them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.memory.__main__ import markdown, text
from tests.bench.memory.facts import plan
from tests.bench.memory.survival import survivals

PAGE = Path(__file__).parents[3] / "docs" / "details" / "compaction-figures.md"


def test_the_conversation_states_each_value_once_or_repeats_a_fact_that_holds() -> None:
    planned = plan()
    assert planned == plan()
    texts = [part for turn in planned.turns for part in (turn.question, *turn.results)]
    for fact in planned.facts:
        assert fact.sentence in " ".join(texts)
    superseded = len(planned.facts) - len(planned.true_after(len(planned.turns)))
    assert 10 < superseded < 30


@pytest.mark.slow
def test_the_docs_have_the_measured_table() -> None:
    rows = survivals()
    assert markdown(rows) in PAGE.read_text()
    assert len(text(rows).splitlines()) == 16
    assert all(row.in_view <= row.with_recall <= row.facts for row in rows)
