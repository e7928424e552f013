"""From a source of batches to dispatches on the devices."""
