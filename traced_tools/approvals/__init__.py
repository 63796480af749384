"""Runs that wait for approval: their state, and the store in which they wait."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
