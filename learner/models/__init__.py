"""Models of every library behind one adapter: their parameters by path, and freezing."""
