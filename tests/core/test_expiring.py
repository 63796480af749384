"""A store drops values when they expire or when there are too many, and is empty in a forked child."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.otel.processes import in_a_process
from traced_tools.core import expiring
from traced_tools.core.expiring import ExpiringStore


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 20))), st.integers(1, 4))
def test_a_store_has_the_latest_values_that_have_not_expired(steps: list[tuple[int, float]], most: int) -> None:
    now, expected = 0.0, dict[int, tuple[float, int]]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expiring, "time", SimpleNamespace(monotonic=lambda: now))
        store: ExpiringStore[int, int] = ExpiringStore(10.0, most)
        for value, (key, passed) in enumerate(steps):
            now += passed
            store.put(key, value)
            expected.pop(key, None)
            expected[key] = (now + 10.0, value)
            expected = dict([*expected.items()][-most:])
            assert len(store) <= most
            for each in range(6):
                expires, kept = expected.get(each, (0.0, 0))
                assert store.get(each) == (kept if expires > now else None)


FORK = """
from traced_tools.core.expiring import ExpiringStore
store = ExpiringStore(100.0, 10)
store.put("a", "b")
with store._lock:
    if not (child := os.fork()):
        signal.alarm(20)
        store.put("c", "d")
        os._exit((store.get("a"), store.get("c")) != (None, "d"))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), store.get("a"))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
def test_a_forked_child_has_an_empty_store_even_if_a_thread_holds_the_lock() -> None:
    done = in_a_process(f"import signal\n{FORK}")
    assert (done.stdout, done.stderr) == ("0 b\n", "")
