"""What attention does and what captions get wrong: grounding on boxes, diagnostics, lengths, common errors.

In: captions with attention, references, COCO's boxes. Out: tables for people and JSON. Read `analysis.py` first.
"""
