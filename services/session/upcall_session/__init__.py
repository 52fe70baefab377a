"""The session service: sessions, runs, work, inboxes and the closing of periods."""
