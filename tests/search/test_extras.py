"""Indexes that need the extra `search` say so where it is missing."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from traced_tools import ConfigurationError
from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.search import InMemoryVectorStore, KeywordToolIndex, RegexToolIndex, VectorToolIndex


@pytest.mark.parametrize(
    ("make", "package"), [(KeywordToolIndex, "tantivy"), (VectorToolIndex, "numpy"), (InMemoryVectorStore, "numpy")]
)
def test_an_index_without_its_package_names_the_extra(
    make: Callable[[], object], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigurationError, match=rf"needs {package}: pip install 'traced_tools\[search\]'") as caught:
        make()
    assert caught.value.__context__ is None


def test_a_regex_index_needs_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("tantivy", "numpy"):
        monkeypatch.setitem(sys.modules, package, None)
    index = RegexToolIndex()
    index.add([ToolDefinition(name="weather")])
    assert index.search("weather")
