"""The models of `learner.examples.models`, under the name that the configs of earlier runs have."""

from learner.examples.models import CNN, MLP, CharTransformer, Regressor

__all__ = ["CNN", "MLP", "CharTransformer", "Regressor"]
