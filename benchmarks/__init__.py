"""Measurements of `learner` against hand-written loops: `python -m benchmarks.overhead`, `benchmarks.devices`."""
