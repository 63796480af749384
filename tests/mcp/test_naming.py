"""The names of tools: accepted by providers, different, and the same in every order."""

from __future__ import annotations

import random
import re

from hypothesis import given
from hypothesis import strategies as st

from traced_tools.mcp.naming import McpToolName, offered_names

SERVERS = st.sampled_from(["files", "search", "a", "a_b"])
TOOLS = st.one_of(st.sampled_from(["read", "b_c", "c", "a.b", "a_b", "a/b", "x" * 70, "é", "ü"]), st.text(min_size=1))
SETS = st.sets(st.builds(McpToolName, SERVERS, TOOLS), max_size=12)


@given(SETS, st.sets(SERVERS), st.randoms(use_true_random=False))
def test_names_are_accepted_different_and_independent_of_the_order(
    tools: set[McpToolName], prefixed: set[str], order: random.Random
) -> None:
    ordered = sorted(tools)
    names = offered_names(ordered, prefixed)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in names.values())
    assert len({*names.values()}) == len(tools)
    order.shuffle(ordered)
    assert offered_names(ordered, prefixed) == names


def test_a_name_that_is_nobody_elses_stays_as_it_is() -> None:
    read, list_files = McpToolName("files", "read"), McpToolName("files", "list_files")
    assert offered_names([read, list_files]) == {read: "read", list_files: "list_files"}


def test_a_name_of_several_servers_gets_the_name_of_each() -> None:
    files, search, alone = McpToolName("files", "find"), McpToolName("search", "find"), McpToolName("files", "read")
    found = offered_names([files, search, alone])
    assert found == {files: "files_find", search: "search_find", alone: "read"}


def test_names_that_become_the_same_for_providers_are_told_apart_by_a_hash() -> None:
    dotted, plain = McpToolName("s", "a.b"), McpToolName("s", "a_b")
    found = offered_names([dotted, plain])
    assert found[plain] == "a_b"
    assert re.fullmatch(r"a_b_[0-9a-f]{8}", found[dotted])
