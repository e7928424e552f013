"""The feed of the training loop: batches of a source, grouped, placed on the devices and prefetched."""
