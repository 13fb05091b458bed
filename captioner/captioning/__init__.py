"""Images to `Caption`s, and to records on disk.

In: image files, folders, archives, bytes, arrays. Out: a `Caption` per image (words, probabilities, attention), or a
folder of records that an interrupted run resumes. Read `captioner.py` first, then `folder_run.py`; README.md tells
what the output files hold and what is promised about them. `options.py` has all settings, for every interface.
"""
