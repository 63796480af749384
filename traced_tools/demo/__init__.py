"""`traced-tools demo`, and the scenario that plays every kind of telemetry that runs emit."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
