"""Runs that wait for approval: their state, and the store in which they wait."""
