"""Stores whose entries are evicted: by number, by age, by several rules, never, and by hand."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Mapping
from threading import Barrier, Thread
from typing import Any

import pytest

from traced_tools.core import eviction
from traced_tools.core.eviction import Composite, EvictingStore, Eviction, Lru, Never, Ttl
from traced_tools.core.fork import ForkSafeLock


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(eviction, "time", clock)
    return clock


def store_of(rule: Eviction, *keys: str) -> EvictingStore[str, list[str]]:
    store: EvictingStore[str, list[str]] = EvictingStore(rule)
    for key in keys:
        store.use(key, lambda key=key: [key])  # type: ignore[misc]  # mypy: a default of a lambda
    return store


def kept(store: EvictingStore[str, list[str]]) -> list[str]:
    return [key for [key] in store.values()]


def test_an_entry_is_made_once_and_used_again() -> None:
    store = store_of(Lru(2))
    first, _ = store.use("a", lambda: ["a"])
    again, evicted = store.use("a", lambda: ["another"])
    assert again is first
    assert evicted == []


def test_the_least_recently_used_entry_is_evicted_beyond_the_maximum() -> None:
    store = store_of(Lru(2), "a", "b")
    assert kept(store) == ["a", "b"]
    store.use("a", lambda: ["new"])
    assert store.use("c", lambda: ["c"]) == (["c"], [["b"]])
    assert kept(store) == ["a", "c"]


def test_a_maximum_of_one_keeps_the_entry_that_is_used() -> None:
    store = store_of(Lru(1), "a", "b")
    assert kept(store) == ["b"]


def test_idle_entries_are_evicted_when_another_one_is_used(clock: Clock) -> None:
    store = store_of(Ttl(10), "a", "b")
    clock.now = 9.0
    store.use("b", lambda: ["new"])
    clock.now = 10.0
    assert store.use("c", lambda: ["c"]) == (["c"], [["a"]])
    assert kept(store) == ["b", "c"]


def test_the_entry_that_is_used_is_never_idle(clock: Clock) -> None:
    store = store_of(Ttl(10), "a")
    clock.now = 1_000.0
    assert store.use("a", lambda: ["new"]) == (["a"], [])


def test_a_composite_evicts_what_any_of_its_rules_evicts(clock: Clock) -> None:
    store = store_of(Composite(Lru(2), Ttl(10)), "a", "b")
    store.use("c", lambda: ["c"])
    assert kept(store) == ["b", "c"]
    clock.now = 10.0
    store.use("c", lambda: ["new"])
    assert kept(store) == ["c"]


def test_a_rule_may_evict_the_entry_that_is_used() -> None:
    class All(Eviction):
        def evicted(self, last_used: Mapping[Any, float], key: Hashable) -> Iterable[Any]:
            return tuple(last_used)

    store = store_of(All(), "a", "b")
    assert kept(store) == ["b"]
    assert store.use("b", lambda: ["new"]) == (["new"], [["b"]])


def test_never_keeps_everything() -> None:
    keys = [str(number) for number in range(2_000)]
    assert kept(store_of(Never(), *keys)) == keys


def test_entries_are_evicted_by_hand() -> None:
    store = store_of(Never(), "a", "b", "c")
    assert store.evict(["b", "unknown"]) == [["b"]]
    assert kept(store) == ["a", "c"]
    assert store.evict() == [["a"], ["c"]]
    assert len(store) == 0


def test_a_rule_of_ones_own_sees_the_entries_in_the_order_of_use() -> None:
    seen: list[list[Any]] = []

    class Watching(Eviction):
        def evicted(self, last_used: Any, key: Any) -> tuple[Any, ...]:
            seen.append([*last_used, key])
            return ()

    store = store_of(Watching(), "a", "b")
    store.use("a", lambda: ["new"])
    assert seen == [["a", "a"], ["a", "b", "b"], ["b", "a", "a"]]


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: Lru(0), ValueError, "most must be at least 1"),
        (lambda: Ttl(0), ValueError, "seconds must be above 0"),
        (lambda: Ttl(None), TypeError, "pass Never"),
        (lambda: Composite(), ValueError, "at least one rule"),
        (lambda: Composite(5), TypeError, r"rules\[0\] must be an Eviction"),
    ],
)
def test_an_invalid_rule_is_refused(make: Callable[[], Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make()


def test_threads_that_use_one_key_share_its_entry() -> None:
    store, together, found = store_of(Lru(10)), Barrier(8), list[Any]()

    def use() -> None:
        together.wait()
        found.append(store.use("a", lambda: ["a"])[0])

    threads = [Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(each) for each in found}) == 1


def test_a_forked_child_finds_the_lock_open() -> None:
    lock = ForkSafeLock()
    with lock:
        child = os.fork()
        if child == 0:
            with lock:
                os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
