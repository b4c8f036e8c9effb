"""Draw figures 6 and 7 of the ViT paper."""
