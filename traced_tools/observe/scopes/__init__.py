"""What OpenTelemetry gets of each stage: spans, metrics and log-based events."""
