"""Regions and the words so far to the next word."""
