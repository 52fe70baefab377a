"""The demo's job: bring the licence headers of a directory of source files in line, where they disagree."""
