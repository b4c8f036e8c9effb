"""The Vision Transformer, written out, and what one forward pass leaves behind."""
