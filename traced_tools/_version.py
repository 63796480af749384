"""The version of the package, in a separate module so that reading it imports nothing else."""

__version__ = "0.1.0"
"""The version of the package."""
