"""Frameworks and SDKs whose model calls and tool calls are observed and decided about as those of our own loop."""
