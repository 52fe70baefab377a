"""The process plumbing that the services have in common, like any library: no rule of Upcall is here."""
