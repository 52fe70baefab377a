"""The question broker: one structured question of a child run to its parent, and its one end."""
