"""OpenAI and servers compatible with its APIs: chat completions, responses and embeddings."""
