"""Observes each stage of a run once, and records it as spans, metrics, log-based events and typed events."""
