"""The reporter: it reads what the device computed, in order, and writes the values of a run."""
