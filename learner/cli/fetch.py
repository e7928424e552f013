"""`learner fetch`: copies a run that `RunMirror` keeps in an object store to this machine."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from learner.cli.parsing import Parser
from learner.util.distribution import install_hint

FETCH = f"""\
Copies a run from where RunMirror keeps it to a directory, where all commands take it: learner resume DIR continues it.
It needs: {install_hint("stores")}"""


def fetch(words: Sequence[str]) -> int:
    """`learner fetch URL [DIR]`."""
    parser = Parser("fetch", FETCH)
    parser.add_argument("url", metavar="URL", help="s3://bucket/runs/digits, gs://..., or what else fsspec opens")
    parser.add_argument(
        "directory",
        metavar="DIR",
        nargs="?",
        type=Path,
        help="the directory to create (default: runs/ and the last name of the URL)",
    )
    line = parser.read(words)
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    from learner.runs.remote import RemoteRun

    remote = RemoteRun(line.url)
    directory = line.directory or Path("runs", remote.url.rpartition("/")[2])
    console = Console(stderr=True)
    bar = Progress(
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    with bar:
        task = bar.add_task(remote.url)
        remote.download(directory, lambda copied, total: bar.update(task, completed=copied, total=total))
    quoted = shlex.quote(str(directory))
    print(f"{directory}\nnext:\n  learner summary {quoted}\n  learner resume {quoted}")
    return 0
