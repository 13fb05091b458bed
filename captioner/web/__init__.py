"""Captions in a browser: the gallery, one file to explore a collection, and the served page with its HTTP API.

Read `gallery.py` for the file, `app.py` for the HTTP API, which README.md describes; `server.py` puts it on a socket.
A request passes `guard.py` (who may ask), `uploads.py` (what was sent), `service.py` (the answer), `decoding.py`
(pixels, in another process) and `request_queue.py` (captions, with others). `browser/` holds what runs in the visitor's
browser; `assets.py` reads it.
"""
