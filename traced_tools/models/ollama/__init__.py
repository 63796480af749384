"""Ollama: its own chat and embeddings."""
