"""A training run: its setup, its loop, validation, saving and stopping."""
