"""Records of captions to the other files of an output folder: tables, a file per image, metadata in the images.

In: the records that a run adds to `captions.jsonl`. Out: files made from them, never overwriting what the program did
not write. Read `folder.py` first.
"""
