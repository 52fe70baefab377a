"""Tests that know Upcall by its wire contract alone."""
