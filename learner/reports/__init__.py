"""Reports on runs: tables, plots, the HTML page, exports and the live view."""
