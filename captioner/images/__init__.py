"""A file to pixels, and grid cells back to the file's own pixels.

In: paths, bytes, Pillow images, arrays, and archives. Out: upright 8-bit RGB images, network inputs (S, S, 3)
uint8, and the `Geometry` that leads from a region back to the original. Nothing else in the package opens image files.

Read `opening.py` first, then `preprocessing.py`. `headers/` measures files before they are unpacked, `archives/` reads
the images inside tar and zip files.
"""
