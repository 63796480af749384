"""The event exporters of the package. Import them from `traced_tools.events`."""
