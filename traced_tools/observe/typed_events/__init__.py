"""The typed events of a run, and how they reach the advisors that listen."""
