"""Pixels to regions to words: the paper.

READ `textbook.py` FIRST: the paper on one page, in its own letters, slow and plain. `attention.py` and
`decoders/lstm.py` are the same model made fast, and tests hold them to it, values and gradients.

In: images (B, 3, S, S) or regions (B, L, D). Out: captions as word ids, with alpha (T, L) and beta (T,) of each.
`encoders/` makes regions, `search/` finds captions, `kernels/` holds the products that are fused or shared between
steps; `losses.py` has the losses, `checkpoint.py` what is written to disk, `onnx/` the graphs for other
runtimes, `extensions.py` the way to parts from elsewhere.
"""
