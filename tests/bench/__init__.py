"""What the loop costs, beside what the same telemetry costs with the bare SDK: `python -m tests.bench`."""
