"""Telemetry: names, spans, metrics, and how an application turns them on."""
