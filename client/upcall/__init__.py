"""The Python client of Upcall."""
