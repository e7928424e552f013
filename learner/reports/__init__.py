"""Runs for people: tables, plots, the HTML page, exports and the live view."""
