"""The commands of `traced-tools mcp`."""
