"""The commands of `traced-tools runs`."""
