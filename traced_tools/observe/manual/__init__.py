"""Runs of loops that are not this package's: their iterations, their model calls, and the tool calls they ask for."""
