"""The commands of `traced-tools approvals`."""
