"""Write run directories by hand."""

import json
from pathlib import Path

LOSSES = {"train/Loss": [0.9, 0.5, 0.4], "valid/Loss": [0.8, 0.6, 0.7]}


def write_run(
    directory, values=None, *, config=None, steps=2, began=1000.0, seconds=10.0, ending="num_epochs", lock=None
):
    """Write a run whose epochs have `steps` optimizer steps and take `seconds`.

    Args:
      directory: the directory to create.
      values: of each epoch, by key.
      config: the text of its config.yaml.
      ending: the reason for its end; None if it has not ended.
      lock: the content of the lock that a process holds.
    """
    directory = Path(directory)
    directory.mkdir(parents=True)
    values = LOSSES if values is None else values
    lines = [{"event": "start", "time": began, "epoch": 1, "step": 0, "resumed": False}]
    epochs = max(map(len, values.values()), default=0)
    for epoch in range(1, epochs + 1):
        now = {key: column[epoch - 1] for key, column in values.items() if epoch <= len(column)}
        time = began + seconds * epoch
        lines.append({"event": "epoch", "time": time, "epoch": epoch, "step": steps * epoch, "values": now})
    if ending is not None:
        lines.append({"event": "end", "time": lines[-1]["time"] + 1, "stopped_by": ending, "step": steps * epochs})
    (directory / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if config is not None:
        (directory / "config.yaml").write_text(config)
    if lock is not None:
        (directory / "run.lock").write_text(lock)
    return directory


def write_steps(directory, name, epoch, values, split="train"):
    """Write a metric file of one epoch, closed by the epoch's value."""
    place = Path(directory, split, f"epoch-{epoch}")
    place.mkdir(parents=True, exist_ok=True)
    lines = [f"{value},32\n" for value in values]
    (place / f"{name}.log").write_text("".join(lines) + "0.123,final\n")
