"""A `Caption` and its image to pictures: where the model looked for each word.

In: an upright image and a caption with its attention. Out: PNG, PDF, SVG, GIF and WebP files. Read `word_grid.py`
first, then `masks.py`, which maps attention back onto the photograph.
"""
