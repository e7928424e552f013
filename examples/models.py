"""The models of `learner.examples.models`, under the name used in configs of earlier runs."""

from learner.examples.models import CNN, MLP, CharTransformer, Regressor

__all__ = ["CNN", "MLP", "CharTransformer", "Regressor"]
