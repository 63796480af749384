"""Flows, the drivers that run them, and the threads they wait in."""
