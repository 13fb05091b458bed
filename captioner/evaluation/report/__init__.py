"""The report: one HTML page that holds all it shows, with its charts as files beside it. Read `report.py` first."""
