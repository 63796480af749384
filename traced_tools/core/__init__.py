"""The nouns that everything else is made of: no input, no output."""
