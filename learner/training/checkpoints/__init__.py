"""Saving in the loop, and resuming from what was saved."""
