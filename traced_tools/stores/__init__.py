"""What the stores of this package share: databases, versions of their tables, errors without contents."""
