"""Scenario: runs of the real loop with scripted models and tools that produce every outcome."""
