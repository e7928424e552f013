"""Look at a run before it trains: overview, memory and sharding, a range test of the learning rate."""
