"""Captions and references to scores.

In: models or files of captions, and a data set. Out: the COCO evaluation's metrics with intervals, what attention
does, a comparison of several systems, a report to send. Read `evaluate.py` first, then `scoring.py`; README.md
describes the protocol.
"""
