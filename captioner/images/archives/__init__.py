"""Archives to the image files in them, read in place and never unpacked to disk.

In: tar files, plain or compressed, and zip files, from strangers too. Out: where each member lies, and its bytes. Read
`tar.py` first.
"""
