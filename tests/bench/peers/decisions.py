"""Runs decisions of a peer's policy, whose last rule is for the call."""

from __future__ import annotations

from collections.abc import Callable

from tests.bench.peers.worker import Setup, count, serve


def serve_decisions(version: str, policy_of: Callable[[int], Callable[[], bool]]) -> None:
    """Answer the driver's requests.

    Args:
        version: the peer's version.
        policy_of: takes a number of rules and returns a function that returns whether the call of `add` is allowed. All
            rules but the last are for other tools.
    """

    def deciding(rules: int) -> Callable[[int], Callable[[], None]]:
        def maker(decisions: int) -> Callable[[], None]:
            is_allowed = policy_of(rules)

            def run() -> None:
                for _ in range(decisions):
                    count(is_allowed())

            return run

        return maker

    serve(Setup(version, {"1 rule": deciding(1), "10,000 rules": deciding(10_000)}))
