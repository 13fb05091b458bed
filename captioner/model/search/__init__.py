"""Regions to captions: beam search and sampling, both on the decoder's one step.

In: a `Decoder`, regions (B, L, D), a `SearchConfig`. Out: a list of `Hypothesis` per image. Read `beam.py` first.
"""
