"""Photographs: safe decoding, preprocessing with exact geometry, folders."""
