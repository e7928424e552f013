"""Saving checkpoints in the loop, and resuming from them."""
