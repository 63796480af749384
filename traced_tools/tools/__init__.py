"""Tools: defining, checking, running them."""
