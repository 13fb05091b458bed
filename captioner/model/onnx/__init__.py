"""A trained model to ONNX graphs, for runtimes without torch.

In: a decoder and its settings. Out: one graph that starts an image and one for each step. Read `decoder.py` first.
"""
