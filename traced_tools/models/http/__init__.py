"""The HTTP transport that all provider models share: connections, time-outs, retries, framing and errors."""
