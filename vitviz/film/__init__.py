"""Make films of attention."""
