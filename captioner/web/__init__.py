"""Captions in a browser: the gallery, one file to explore a collection, and the served page with its HTTP API.

Read `gallery.py` for the file, `serving.py` for the server; README.md describes the HTTP API.
"""
