"""Measures the durable round trip beside the floor that the same server sets."""
