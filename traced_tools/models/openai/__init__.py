"""OpenAI, and the servers that speak its languages: chat completions, responses, embeddings."""
