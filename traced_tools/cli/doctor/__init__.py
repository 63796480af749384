"""The command `traced-tools doctor`."""
