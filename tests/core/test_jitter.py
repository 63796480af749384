from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from traced_tools.core.jitter import jittered


@given(st.floats(0, 1000, allow_subnormal=False), st.floats(0, 1))  # subnormal numbers are too few to be distinct
def test_a_jittered_pause_is_random_within_its_limits(pause: float, least: float) -> None:
    pauses = {jittered(pause, least) for _ in range(5)}
    assert all(pause * least <= each <= pause for each in pauses)
    assert len(pauses) == 5 or pause == 0 or least > 0.99


def test_the_applications_random_numbers_stay_as_it_seeded_them() -> None:
    random.seed(7)
    before = random.getstate()
    jittered(1.0, 0.5)
    assert random.getstate() == before
