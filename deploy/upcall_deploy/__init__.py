"""Bringing Upcall up: provisioning of streams and consumers, and everything on one machine."""
