"""The position and the state of a run, in the form in which checkpoints hold them."""
