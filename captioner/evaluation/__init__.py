"""Captions and references to scores.

In: models or files of captions, and a data set. Out: the COCO evaluation's metrics with intervals, what attention
does, a comparison of several systems, a report to send. Read `evaluator.py` first; README.md describes the protocol.
"""
