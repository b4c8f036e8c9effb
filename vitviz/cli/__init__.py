"""Command line of `vitviz`: a module for each group of commands, loaded when one of them is used."""
