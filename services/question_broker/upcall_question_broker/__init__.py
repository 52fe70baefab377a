"""The question broker: one open question a run, one end a question."""
