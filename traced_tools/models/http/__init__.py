"""HTTP, the one way to reach a model that is not in this process."""
