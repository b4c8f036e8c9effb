"""Decode photographs safely, preprocess them with exact geometry, and list folders."""
