"""How records are read: queries, calls and runs, exports, matches."""
