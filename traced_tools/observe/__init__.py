"""Observes each stage of a run once, and records it as spans, metrics, log-based events and typed events."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
