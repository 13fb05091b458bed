"""The first bytes of an image file to its format and size, before any pixel is unpacked.

In: the bytes of a file, whoever made it. Out: a `Header`, or why the file is not whole and sound. Read `header.py`
first.
"""
