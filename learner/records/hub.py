"""Models on the Hugging Face Hub: weights, config, an exported program, and a card with the metrics.

    push_model("user/digits", result.best_model, metrics={"valid/Accuracy": 0.97})
    model = load_model(pull_model("user/digits", "digits") / "model.safetensors", Model(nnx.Rngs(0)))

The token is the machine's: from `hf auth login`, or `HF_TOKEN`. No function here accepts a token.
"""

import contextlib
import json
import math
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.errors import LearnerError, near
from learner.records import inference
from learner.records.leaves import leaves_of
from learner.records.safetensors import SafetensorsRecorder
from learner.util.distribution import VERSION
from learner.util.optional import import_optional

MODEL, CONFIG, CARD, EXPORT = "model.safetensors", "config.yaml", "README.md", "inference"
FILES = (MODEL, CONFIG, CARD, *(f"{EXPORT}/{name}" for name in sorted(inference.FILES)))
SOURCE = "hub.json"
"""The file in a pulled directory that names its repository."""

LOAD = """\
from learner import load_model
from learner.records import pull_model

model = load_model(pull_model("{repository}", "{name}") / "model.safetensors", make_model())
"""
EVALUATE = """\
learner pull {repository} {name}
learner evaluate {name} --trust   # runs the code that config.yaml names: read it first
"""


def push_model(
    repository: str,
    model: Any,
    *,
    metrics: Mapping[str, float] | None = None,
    config: str | None = None,
    export: str | Path | None = None,
    private: bool | None = None,
    revision: str | None = None,
    card: Mapping[str, Any] | None = None,
) -> str:
    """Push a model to the Hugging Face Hub, in one commit, and return the commit's address. A missing repository or
    branch is created.

    Args:
      repository: the name of the repository, such as `user/digits`.
      model: see `save_model`.
      metrics: values by key, such as `valid/Accuracy`. The card lists all values; values of splits other than `train`
        are also in its `model-index`.
      config: the text of the run's config.
      export: a directory written by `export_model`, to be pushed with the model.
      private: create the repository as private, if it does not exist. Default: the account's setting.
      revision: the branch. Default: `main`.
      card: further metadata of the card: `license`, `datasets`, `language`, `pipeline_tag`, `tags`, `base_model`.

    Raises:
      LearnerError: the package or the token is missing, an argument is invalid, or the Hub rejects the request.
    """
    hub = _import_hub("push_model")
    content = SafetensorsRecorder().to_bytes(model)
    files: dict[str, Any] = {MODEL: content} | ({} if config is None else {CONFIG: config.encode()})
    for path in _exported(export):
        files[f"{EXPORT}/{path.name}"] = str(path)
    files[CARD] = _card(hub, repository, model, metrics or {}, config, export is not None, card or {}).encode()
    with _readable_errors(hub, repository, "pushed"):
        if hub.is_offline_mode():
            raise hub.errors.OfflineModeIsEnabled
        if hub.get_token() is None:
            raise LearnerError(
                f"{repository} cannot be pushed without a token: run hf auth login, or set HF_TOKEN",
                code="hub-token-missing",
            )
        api = hub.HfApi(library_name="learner", library_version=VERSION)
        api.create_repo(repository, private=private, exist_ok=True)
        if revision is not None:
            api.create_branch(repository, branch=revision, exist_ok=True)
        operations = [hub.CommitOperationAdd(name, content) for name, content in files.items()]
        message = f"Upload the model with learner {VERSION}"
        commit = api.create_commit(repository, operations, commit_message=message, revision=revision)
    return str(commit.commit_url)


def pull_model(repository: str, directory: str | Path, *, revision: str | None = None) -> Path:
    """Copy a model from the Hugging Face Hub to a new directory, and return its path. Offline (`HF_HUB_OFFLINE=1`), it
    is copied from the Hub's cache on this machine. Only files that `push_model` writes are copied; no code is run.

    Args:
      repository: the name of the repository, such as `user/digits`.
      directory: the directory to create; it may exist if it is empty. Pass its `model.safetensors` to `load_model`.
      revision: a branch, a tag or a commit. Default: `main`.

    Raises:
      LearnerError: the package is missing, there is no such model, the Hub rejects the request, or the directory is not
        empty.
    """
    hub = _import_hub("pull_model")
    target = Path(directory)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise LearnerError(f"{target} exists already; name another directory", code="hub-directory-exists", path=target)
    with _readable_errors(hub, repository, "pulled"):
        if not hub.is_offline_mode():  # a download falls back to the cache if the Hub refuses or is unreachable
            hub.HfApi().model_info(repository, revision=revision)
        snapshot = Path(hub.snapshot_download(repository, revision=revision, allow_patterns=list(FILES)))
        found = [name for name in FILES if (snapshot / name).is_file()]
    if MODEL not in found:
        raise LearnerError(
            f"{repository} has no {MODEL}: learner push did not write it", code="hub-model-missing", name=repository
        )
    partial = target.with_name(f"{target.name}.{uuid.uuid4().hex}.partial")
    try:
        for name in found:
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(snapshot / name, partial / name)  # the cache contains links
        (partial / SOURCE).write_text(json.dumps({"repository": repository, "commit": snapshot.name}) + "\n")
        if target.exists():
            target.rmdir()
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _import_hub(what: str) -> Any:
    for module in ("constants", "errors"):  # the package does not import its submodules
        import_optional(f"huggingface_hub.{module}", "hub", what)
    return import_optional("huggingface_hub", "hub", what)


def _exported(export: str | Path | None) -> list[Path]:
    """Return the files of an exported model."""
    if export is None:
        return []
    paths = [Path(export, name) for name in sorted(inference.FILES)]
    found = [path for path in paths if path.is_file()]
    if not {path.name for path in found} & {inference.PROGRAM, inference.ONNX}:
        raise LearnerError(
            f"{export} has no exported model: write it with export_model or learner export-model",
            code="hub-export-missing",
            path=export,
        )
    return found


def _card(
    hub: Any,
    repository: str,
    model: Any,
    metrics: Mapping[str, float],
    config: str | None,
    has_export: bool,
    metadata: Mapping[str, Any],
) -> str:
    """Return the content of the model card."""
    name = repository.rpartition("/")[2]
    known = ("base_model", "datasets", "language", "license", "license_name", "license_link", "pipeline_tag", "tags")
    for key in metadata:
        if key not in known:
            raise LearnerError(f"the card of a model has no {key!r}: {near(key, known)}", code="hub-card-key", key=key)
    datasets = metadata.get("datasets") or ["unnamed"]
    dataset = datasets if isinstance(datasets, str) else str(datasets[0])
    results = [
        hub.EvalResult(
            task_type=metadata.get("pipeline_tag") or "other",
            dataset_type=dataset,
            dataset_name=dataset,
            dataset_split=split,
            metric_type=metric.lower().replace(" ", "_"),
            metric_name=metric,
            metric_value=float(value),
        )
        for key, value in metrics.items()
        for split, _, metric in [key.partition("/")]
        if metric and split != "train" and math.isfinite(value)
    ]
    tags = {"tags": ["jax", "learner", *metadata.get("tags", ())]}
    given = {**metadata, **tags, "model_name": name, "eval_results": results or None}
    data = hub.ModelCardData(library_name="learner", **given)
    floats = [x for x in leaves_of(model).arrays.values() if jnp.issubdtype(x.dtype, jnp.inexact)]
    numbers = sum(int(np.prod(x.shape)) for x in floats)
    about = (
        f"`{type(model).__name__}` with {numbers:,} numbers, trained by learner {VERSION} with JAX {jax.__version__}."
    )
    parts = [f"# {name}", about]
    if metrics:
        rows = [f"| {key} | {value:.6g} |" for key, value in metrics.items()]
        parts.append("\n".join(["| metric | value |", "|---|---|", *rows]))
    blank = {"repository": repository, "name": name}
    parts.append(f"```python\n{LOAD.format(**blank)}```")
    if has_export:
        parts.append(f"`{EXPORT}` has the model as a program that needs neither learner nor the model's code.")
    if config is not None:
        parts += [f"```sh\n{EVALUATE.format(**blank)}```", "## Config", f"```yaml\n{config.rstrip()}\n```"]
    return str(hub.ModelCard(f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(parts) + "\n"))


@contextlib.contextmanager
def _readable_errors(hub: Any, repository: str, action: str) -> Iterator[None]:
    """Convert errors of the Hub and the connection into `LearnerError`, without any token that they quote."""
    try:
        yield
    except LearnerError:
        raise
    except Exception as error:
        # Without the original error: a server may quote the request, with the token, in its message.
        raise _readable(hub, error, f"{repository} cannot be {action}", repository) from None


def _readable(hub: Any, error: Exception, what: str, repository: str) -> LearnerError:
    if hub.is_offline_mode():
        return LearnerError(
            f"{what}: HF_HUB_OFFLINE is set; offline, models are pulled from the cache of this machine only",
            code="hub-offline",
            name=repository,
        )
    if isinstance(error, hub.errors.HFValidationError):
        return LearnerError(f"{what}: a repository is named user/model", code="hub-repository-name", name=repository)
    if isinstance(error, hub.errors.RevisionNotFoundError):
        return LearnerError(f"{what}: it has no such revision", code="hub-revision-missing", name=repository)
    if isinstance(error, hub.errors.RepositoryNotFoundError):
        endpoint = hub.constants.ENDPOINT
        return LearnerError(
            f"{what}: {endpoint} has no such model, or the token of this machine (hf auth login) may not use it",
            code="hub-repository-missing",
            name=repository,
        )
    if isinstance(error, hub.errors.HfHubHTTPError) and error.response.status_code in (401, 403):
        return LearnerError(
            f"{what}: the Hub refuses the token of this machine (hf auth login, HF_TOKEN), which needs access to it",
            code="hub-token-refused",
            name=repository,
        )
    reason, token = str(error), hub.get_token()
    reason = reason.replace(token, "***") if token else reason
    return LearnerError(f"{what}: {type(error).__name__}: {reason}", code="hub-failed", name=repository)
