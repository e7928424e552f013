"""Models in portable files: MessagePack, JSON and safetensors, to be kept, shared and loaded elsewhere.

    save_model("model.safetensors", model)
    model = load_model("model.safetensors", Model(nnx.Rngs(0)))

The extension determines the format, and a recorder the precision.
"""

from typing import TYPE_CHECKING

from learner.util.discovery import import_lazily

if TYPE_CHECKING:
    from learner.records.fitting import LoadReport
    from learner.records.hub import pull_model, push_model
    from learner.records.inference import export_model
    from learner.records.json import JsonRecorder
    from learner.records.messagepack import CompactRecorder, MessagePackRecorder
    from learner.records.model_files import load_model, recorder_for, save_model
    from learner.records.recorder import Recorder
    from learner.records.safetensors import BinRecorder, SafetensorsRecorder

    __all__ = [
        "BinRecorder",
        "CompactRecorder",
        "JsonRecorder",
        "LoadReport",
        "MessagePackRecorder",
        "Recorder",
        "SafetensorsRecorder",
        "export_model",
        "load_model",
        "pull_model",
        "push_model",
        "recorder_for",
        "save_model",
    ]

if not TYPE_CHECKING:
    __getattr__, __dir__ = import_lazily(__name__)
