"""A process that appends to conversations until a test kills it.

    python -m tests.memory.crashing URL

It prints a line after each append that has returned: the number of the append. Each append has five entries.
"""

from __future__ import annotations

import sys

from tests.memory.made import said
from traced_tools.memory import SqlChatMemoryRepository

ENTRIES = 20


def main() -> None:
    repository = SqlChatMemoryRepository(sys.argv[1])
    version = repository.version("c")
    while True:
        number = version // ENTRIES
        version = repository.append(
            "c", [said(f"{number}.{part}" * 100, number + 1) for part in range(ENTRIES)], version
        )
        print(number, flush=True)


if __name__ == "__main__":
    main()
