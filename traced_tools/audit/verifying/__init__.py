"""Checks that a store holds the records that were written, unchanged and complete."""
