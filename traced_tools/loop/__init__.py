"""The loop: the chain of advisors, the exchange of requests and answers, and the tool-calling loop."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
