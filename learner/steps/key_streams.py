"""Numbers that are folded into random keys, one for each use of a key.

The train step of the user gets the key of its micro-batch, and may split it: `jax.random.split(key, n)[i]` is
`jax.random.fold_in(key, i)`. No split is long enough to reach these numbers, except for that of the model, whose
streams fold two more into the result: a step meets one of their keys only if it splits its own three times.
"""

import numpy as np

# Folded into the key of a micro-batch.
MODEL_STREAM = 1  # the random streams of the model
BATCH_STREAM = 2**31 - 2  # `on_batch`
# Folded into the key of an optimizer step, in place of the number of a micro-batch.
AFTER_STEP = 2**31 - 1
# Folded into the root key of a run, in place of the number of an optimizer step.
VALID_STREAM = 2**31 - 1
RUN_STREAM = np.uint32(2**32 - 3)  # `run_key`
