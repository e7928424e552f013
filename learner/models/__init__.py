"""Models of all libraries behind one adapter: their parameters by path, and freezing."""
