"""The reporter: one report for each closed period of a child."""
