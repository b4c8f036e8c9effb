"""The Vision Transformer, and the trace of its forward pass."""
