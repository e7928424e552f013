"""The schedule of validations."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class ValidPeriod:
    """The period of a split's validations.

    Attributes:
      steps: optimizer steps between validations inside epochs; None for no such validation.
      epochs: epochs between validations at epoch ends; 0 for no such validation.
    """

    steps: int | None = None
    epochs: int = 1


@dataclasses.dataclass(frozen=True)
class ValidSchedule:
    """A schedule of validations. Regardless of the periods, they are due at the end of the last epoch and at the last
    step, if that ends an epoch.

    Attributes:
      periods: the periods by split, in order.
      num_epochs: the epochs of the run, or None.
      num_steps: the steps of the run, or None.

    >>> schedule = ValidSchedule({"valid": ValidPeriod(steps=4), "valid-ood": ValidPeriod(epochs=2)}, num_epochs=3)
    >>> schedule.due(4), schedule.due(6), schedule.due(6, epoch=1), schedule.due(12, epoch=2), schedule.due(18, epoch=3)
    (('valid',), (), ('valid',), ('valid', 'valid-ood'), ('valid', 'valid-ood'))
    """

    periods: Mapping[str, ValidPeriod]
    num_epochs: int | None = None
    num_steps: int | None = None

    def due(self, step: int, epoch: int | None = None) -> tuple[str, ...]:
        """Return the splits whose validation is due after an optimizer step. `epoch`: the epoch that ends there, or
        None.
        """
        last = epoch is not None and (epoch == self.num_epochs or step == self.num_steps)

        def is_due(period: ValidPeriod) -> bool:
            by_step = period.steps is not None and step % period.steps == 0
            return last or by_step or (epoch is not None and period.epochs > 0 and epoch % period.epochs == 0)

        return tuple(split for split, period in self.periods.items() if is_due(period))
