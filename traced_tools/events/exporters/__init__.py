"""The exporters of events that come with the package; `traced_tools.events` has their names."""
