"""Examples that run: the quickstart of the README, and the demo."""
