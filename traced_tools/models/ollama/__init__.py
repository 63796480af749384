"""Ollama: its native chat and embeddings APIs."""
