"""Write `learner/cli/topics.json`: `python docs/topics.py` after adding a key of configs, a class or an argument."""

import importlib.metadata
import json
from collections.abc import Sequence
from typing import Any

from learner.cli.help import topic_lines
from learner.cli.usage import STORED, TOPICS


def topics() -> dict[str, Any]:
    """Return the help of the topics, and the version of optax of the listed optimizers."""
    texts = {topic: topic_lines(topic) for topic in TOPICS if topic != "processes"}
    return {"optax": importlib.metadata.version("optax"), "topics": texts}


def _lines(texts: Sequence[str]) -> str:
    return "[\n" + ",\n".join(map(json.dumps, texts)) + "\n]"


if __name__ == "__main__":
    content = topics()
    # A line for each entry, so that two changes of the list can be merged.
    lists = [f"{json.dumps(topic)}: {_lines(texts)}" for topic, texts in content["topics"].items()]
    topics_text = ",\n".join(lists)
    STORED.write_text(f'{{"optax": "{content["optax"]}", "topics": {{\n{topics_text}\n}}}}\n', encoding="utf-8")
