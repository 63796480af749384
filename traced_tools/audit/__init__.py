"""The audit trail of tool intent: what the model wanted to do, why, who allowed it, and what happened."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
