"""Durable runs: the log of a run that outlives its process, where the next process goes on, and workers that do."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
