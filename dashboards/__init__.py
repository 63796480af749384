"""Dashboards, recording rules and alert rules over the telemetry of traced_tools.

`python -m dashboards` generates the files in `classic/`, `v2/` and `rules/`. Every metric, label and attribute comes
from `traced_tools.observe.names`, so a rename there changes or breaks the generator, not a board in production.
"""
