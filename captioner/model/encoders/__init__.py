"""Images to regions: pretrained backbones behind one interface, engines that run them, and the region cache.

In: images (B, 3, S, S) uint8. Out: regions (B, L, D). Read `encoder.py` first.
"""
