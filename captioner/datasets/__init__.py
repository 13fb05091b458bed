"""Annotation files to captioned images and words.

In: COCO, Karpathy's splits, Flickr8k, or a user's metadata or text files. Out: a `CaptionDataset` of images with their
captions and split, and the `Vocabulary` of their words. Read `dataset.py` first; `readers.py`, `own_captions.py` and
`parquet.py` have a function for each format.
"""
