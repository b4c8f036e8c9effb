"""Command line of `vitviz`: a module for each group of commands, imported without torch."""
