"""The same numbers, faster: operations that training and search spend their time in.

Each file shows the plain line that it replaces. Nothing here is needed to understand the model: see `textbook.py`.
"""
