"""A run's log to pages: run.html, which shows a training as it goes, and several runs side by side.

In: a run folder's log and settings. Out: one HTML file. Read `run_page.py` first.
"""
