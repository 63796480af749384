"""Runs the benchmark: `python -m tests.bench [--quick] [--json]`."""

from __future__ import annotations

from tests.bench.bench_loop import main

if __name__ == "__main__":
    main()
