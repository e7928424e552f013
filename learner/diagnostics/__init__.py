"""Diagnostics of a run before it trains: overview, memory and sharding, and a learning-rate range test."""
