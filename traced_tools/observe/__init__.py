"""Telemetry: names, spans, metrics and log-based events of a run, and the set-up of the SDK."""
