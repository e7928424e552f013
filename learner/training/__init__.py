"""A training run: its setup, its loop, validation, saving and stopping.

`session` opens a run, and `run` has the operations that the loop calls. The folders, from the top to the bottom:

- `setup`: programs, feeders, threads and parts of a run, each built from those before it.
- `checkpoints`: saving in the loop, and resuming.
- `files`: the directory of a run, its log, and the outputs that write there.
- `progress`: the position and the state of a run, as checkpoints hold them.
- `reporting`: the thread that reads values from the device and writes them.
- `checks`: of data, steps and options before anything is compiled.
- `programs`: compiled programs, and the runners that call them.
- `feed`: batches, grouped into steps and dispatches, and placed on the devices.

Beside the folders are modules that several of them share, and public classes, whose modules saved configs name.
"""
