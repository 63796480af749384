"""The commands of `traced-tools policy`."""
