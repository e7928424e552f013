"""The directory of a run, its log, and the outputs that write there."""
