"""What a pass of the loop costs beside other frameworks: `python -m tests.bench.peers`."""
