"""Tests of the longer examples in the docs: servers with real clients, and programs in a terminal."""
