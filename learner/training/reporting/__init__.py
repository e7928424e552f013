"""The reporter: it reads the results of the device in order, and writes the values of a run."""
