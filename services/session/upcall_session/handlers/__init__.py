"""The wire: load, decide, commit, reply. Nothing is decided here."""
