"""Models in portable files: MessagePack, JSON and safetensors, to be kept, shared and loaded elsewhere.

    save_model("model.safetensors", model)
    model = load_model("model.safetensors", Model(nnx.Rngs(0)))

The extension determines the format, and a recorder the precision.
"""

from typing import TYPE_CHECKING

from learner.util.discovery import import_lazily

if TYPE_CHECKING:
    from learner.records.fitting import LoadReport as LoadReport
    from learner.records.hub import pull_model as pull_model
    from learner.records.hub import push_model as push_model
    from learner.records.inference import export_model as export_model
    from learner.records.json import JsonRecorder as JsonRecorder
    from learner.records.messagepack import CompactRecorder as CompactRecorder
    from learner.records.messagepack import MessagePackRecorder as MessagePackRecorder
    from learner.records.model_files import load_model as load_model
    from learner.records.model_files import recorder_for as recorder_for
    from learner.records.model_files import save_model as save_model
    from learner.records.recorder import Recorder as Recorder
    from learner.records.safetensors import BinRecorder as BinRecorder
    from learner.records.safetensors import SafetensorsRecorder as SafetensorsRecorder

if not TYPE_CHECKING:
    __getattr__, __dir__ = import_lazily(__name__)
