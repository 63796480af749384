"""The observation of each stage of a run: its facts, reported once by the code that runs the stage."""
