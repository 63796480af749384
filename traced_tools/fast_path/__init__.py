"""Records spans and metrics in the structures of the OpenTelemetry SDK directly, where they are of a known version."""
