"""Google: the Gemini API."""
