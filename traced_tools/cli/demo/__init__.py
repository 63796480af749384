"""`traced-tools demo`: an agent over real HTTP, its answer as it streams, and then its trace."""
