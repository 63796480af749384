"""A gateway between MCP clients and a server: it decides about calls of tools, and passes everything else through."""
