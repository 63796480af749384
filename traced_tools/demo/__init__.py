"""`traced-tools demo`: runs an agent over real HTTP, prints its answer as it streams, then its trace."""
