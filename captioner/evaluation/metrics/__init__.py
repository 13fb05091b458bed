"""BLEU, METEOR, ROUGE-L and CIDEr-D as the COCO evaluation computes them, and bootstrap intervals.

In: tokenised captions and references. Out: corpus scores and scores per image. Read `judge.py` first.
"""
