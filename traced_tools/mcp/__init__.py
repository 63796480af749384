"""Tools of servers of the Model Context Protocol (MCP), and tools as such a server. Needs the extra `mcp`."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
