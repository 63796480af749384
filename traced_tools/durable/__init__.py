"""Durable runs: the log of a run that outlives its process, and where the next process goes on."""
