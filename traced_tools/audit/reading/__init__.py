"""Reads calls, runs and records from an audit store."""
