"""Images to `Caption`s, and to records on disk.

In: image files, folders, archives, bytes, arrays. Out: a `Caption` per image (words, probabilities, attention), or a
folder of records that an interrupted run resumes. Read `captioner.py` first, then `folder_run.py`; `output/`
makes the other files of that folder, and README.md says what they hold and what is guaranteed about them. `options.py`
has all settings, for every interface.
"""
