"""How records reach the store."""
