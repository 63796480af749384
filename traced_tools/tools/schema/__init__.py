"""From a Python callable to a JSON schema, and from a model's JSON to arguments."""
