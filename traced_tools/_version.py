"""The version of the package. Importing this module imports nothing else."""

__version__ = "0.1.0"
