"""What a run does, observed once: one object for each run, iteration, hook, model call and tool call."""
