"""Chat and embedding models: their interfaces, and an implementation for each provider."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
