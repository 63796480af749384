"""Flows, the drivers that run them, and the threads they wait in."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
