"""Checks of data, steps and options before anything is compiled, and of processes and resumed runs."""
