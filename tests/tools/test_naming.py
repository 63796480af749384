"""The names of tools that are sent to providers."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.fixtures import bfcl_queries, bfcl_tools, livemcp_tools
from traced_tools.core.tool_naming import wire_name

ACCEPTED = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
NAMES = st.text(min_size=1, max_size=80) | st.from_regex(r"[a-z./ -]{1,80}", fullmatch=True)


@pytest.mark.parametrize("name", ["weather", "get_weather-2", "A", "_", "_-", "___", "x" * 64])
def test_a_name_that_providers_accept_stays_as_it_is(name: str) -> None:
    assert wire_name(name) == name


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        ("math.factorial", "math_factorial"),
        ("files/read file", "files_read_file"),
        ("a..b", "a__b"),
        ("weather\n", "weather_"),
        ("." * 63 + "a", "_" * 63 + "a"),
        ("3d_render", "_3d_render"),
        ("-", "_-"),
    ],
)
def test_each_other_character_becomes_an_underscore(name: str, wire: str) -> None:
    assert wire_name(name) == wire


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("größe", "gr__e_"),
        ("天气", "___"),
        ("weather☀", "weather__"),
        ("a.b" * 30, ("a_b" * 30)[:55] + "_"),
        ("x" * 65, "x" * 55 + "_"),
        ("...", "____"),
        ("", "_"),
    ],
)
def test_a_name_that_underscores_alone_would_make_ambiguous_ends_in_a_hash(name: str, start: str) -> None:
    assert re.fullmatch(re.escape(start) + "[0-9a-f]{8}", wire_name(name))


def test_the_name_is_the_same_in_every_process() -> None:
    assert wire_name("größe") == "gr__e_d353a267"


@pytest.mark.parametrize(
    ("one", "other"), [("天气", "时间"), ("größe", "grüße"), ("x" * 70, "x" * 71), ("...", "//."), (".", "")]
)
def test_names_that_underscores_alone_would_make_equal_stay_different(one: str, other: str) -> None:
    assert wire_name(one) != wire_name(other)


@given(NAMES)
def test_any_name_becomes_one_that_providers_accept(name: str) -> None:
    assert ACCEPTED.fullmatch(wire_name(name))


@given(NAMES)
def test_the_wire_name_of_a_wire_name_is_the_same(name: str) -> None:
    assert wire_name(wire_name(name)) == wire_name(name)


@given(NAMES, NAMES)
def test_names_outside_ascii_stay_different(one: str, other: str) -> None:
    assume(one != other and not one.isascii())
    assert wire_name(one) != wire_name(other)


def test_the_names_of_published_tools_become_acceptable_and_mostly_stay_readable() -> None:
    names = [tool["name"] for tool in [*bfcl_tools(), *livemcp_tools()]]
    assert sum("." in name for name in names) > 1000
    assert all(ACCEPTED.fullmatch(wire_name(name)) for name in names)
    assert {wire_name(name) for name in names if name.isascii() and len(name) <= 64} == {
        re.sub(r"[^\w-]", "_", name, flags=re.ASCII) for name in names if name.isascii() and len(name) <= 64
    }


def test_published_tools_that_are_offered_together_keep_unique_names() -> None:
    names = {tool["id"]: tool["name"] for tool in bfcl_tools()}
    for query in bfcl_queries():
        offered = {names[each] for each in query["offered"]}
        back = {wire_name(name): name for name in offered}
        assert sorted(back.values()) == sorted(offered)
