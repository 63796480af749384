"""A process that waits for a line on its standard input, and then claims a state and decides about a call.

    python -m tests.approvals.claiming URL NAME

It prints `ready` when it can begin, and then a line: whether its claim was the one, and whether its decision was.
"""

from __future__ import annotations

import sys

from tests.approvals.made import claimed
from traced_tools import Reject
from traced_tools.approvals import PendingStore
from traced_tools.errors import AlreadyDecided, ResumeError
from traced_tools.loop.state import RunState


def main() -> None:
    url, name = sys.argv[1:]
    with PendingStore(url) as store:
        state = RunState.from_text(store.state("run-1"))
        print("ready", flush=True)
        sys.stdin.readline()
        print(_has_claimed(store, state), _has_decided(store, name), flush=True)


def _has_claimed(store: PendingStore, state: RunState) -> bool:
    try:
        claimed(store, state)
    except ResumeError:
        return False
    return True


def _has_decided(store: PendingStore, name: str) -> bool:
    try:
        store.decide("b", Reject(name, by=name))
    except AlreadyDecided:
        return False
    return True


if __name__ == "__main__":
    main()
