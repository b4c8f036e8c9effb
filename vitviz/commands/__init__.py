"""The commands of `vitviz`: what is typed, what is asked of the library, what is printed and written."""
