"""How a store is checked against what was written."""
