"""Continue in JAX with models trained in PyTorch: an MLP and a small convolutional network on digits.

PyTorch trains both for some steps and saves them as safetensors; `load_model(..., layout="torch")` renames the arrays
and transposes kernels, and the outputs equal PyTorch's. Two things are up to the model: flax has channels last, so a
convolution's output is put in PyTorch's order before it is flattened; and the layers' settings have to agree (`epsilon`
of a LayerNorm is 1e-6 in flax and 1e-5 in PyTorch, strided convolutions pad other sides).

    pip install torch safetensors && python -m examples.from_torch
"""

import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from learner import load_model
from learner.data import digits
from learner.errors import LearnerError


class MLP(nnx.Module):
    """The counterpart of `torch.nn.Sequential(Linear, ReLU, Linear)`: `[batch, 64]` to `[batch, 10]`."""

    def __init__(self, rngs: nnx.Rngs):
        self.layers = nnx.List([nnx.Linear(64, 32, rngs=rngs), nnx.relu, nnx.Linear(32, 10, rngs=rngs)])

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the logits of flat images."""
        for layer in self.layers:
            x = layer(x)
        return x


class CNN(nnx.Module):
    """A convolution, a batch normalisation and a linear layer: `[batch, 8, 8, 1]` to `[batch, 10]`."""

    def __init__(self, rngs: nnx.Rngs):
        self.conv = nnx.Conv(1, 6, (3, 3), padding=1, rngs=rngs)
        self.norm = nnx.BatchNorm(6, rngs=rngs)
        self.head = nnx.Linear(6 * 4 * 4, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the logits of images with their channel last."""
        x = nnx.max_pool(nnx.relu(self.norm(self.conv(x))), (2, 2), strides=(2, 2))
        x = x.transpose(0, 3, 1, 2)  # PyTorch flattens channels first
        return self.head(x.reshape(x.shape[0], -1))


def torch_models(torch: Any) -> tuple[Any, Any]:
    """Return the equivalent models in PyTorch."""
    nn = torch.nn

    class TorchCNN(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6)
            self.head = nn.Linear(6 * 4 * 4, 10)

        def forward(self, x: Any) -> Any:
            x = nn.functional.max_pool2d(self.norm(self.conv(x)).relu(), 2)
            return self.head(x.flatten(1))

    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)), TorchCNN()


def trained(torch: Any, model: Any, images: Any, labels: Any, steps: int) -> Any:
    """Train a model for some steps of Adam on all rows, and return it in eval mode."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return model.eval()


def main(steps: int = 50) -> dict[str, float]:
    """Train with PyTorch, load with learner, and return the largest difference of an output, by model."""
    try:
        import safetensors.torch
        import torch
    except ImportError as error:
        raise LearnerError(f"this example needs {error.name}: pip install torch safetensors") from None
    torch.manual_seed(0)
    rows = digits("train").arrays
    images, labels = np.asarray(rows["image"], np.float32), torch.from_numpy(np.asarray(rows["label"], np.int64))
    flat, square = images.reshape(-1, 64), images.reshape(-1, 8, 8, 1)
    mlp, cnn = torch_models(torch)
    differences = {}
    with tempfile.TemporaryDirectory() as directory, torch.random.fork_rng():
        path = Path(directory) / "model.safetensors"
        for name, theirs, ours, x in (("mlp", mlp, MLP, flat), ("cnn", cnn, CNN, square)):
            given = torch.from_numpy(x if name == "mlp" else x.transpose(0, 3, 1, 2).copy())
            trained(torch, theirs, given, labels, steps)
            safetensors.torch.save_file(theirs.state_dict(), path)
            rename = [(r"^(\d)", r"layers.\1")] if name == "mlp" else []
            model = load_model(path, ours(nnx.Rngs(0)), layout="torch", rename=rename)
            model.eval()
            with torch.no_grad():
                expected = theirs(given).numpy()
            differences[name] = float(np.abs(np.asarray(model(jnp.asarray(x))) - expected).max())
            print(f"{name}: the outputs differ by {differences[name]:.1e} at most, and are {abs(expected).max():.1f}")
    return differences


if __name__ == "__main__":
    main()
