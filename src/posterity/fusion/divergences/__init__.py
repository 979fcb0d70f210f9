"""Divergences of components other than the two directions of KL, and their barycentres."""

from typing import Literal, get_args

from posterity.errors import UsageError
from posterity.fusion.divergences.discrepancy import Discrepancy
from posterity.fusion.divergences.jensen import Jeffreys, Renyi
from posterity.fusion.geometry import Divergence

__all__ = ["Discrepancy", "Jeffreys", "Name", "Renyi", "divergence_of"]

Name = Literal["reverse", "forward", "jeffreys", "renyi"]


def divergence_of(choice: Divergence | Discrepancy | str) -> Divergence | Discrepancy:
    """The divergence that is asked for: by name, as ``"renyi:0.3"`` with an order, or itself.

    Raises:
        UsageError: for anything else.
    """
    if isinstance(choice, Renyi) and choice.order == 1:
        return Divergence.REVERSE  # which it is
    if isinstance(choice, Divergence | Discrepancy):
        return choice
    name, colon, order = choice.partition(":") if isinstance(choice, str) else ("", "", "")
    if not colon and name in list(Divergence):
        return Divergence(name)
    if choice == "jeffreys":
        return Jeffreys()
    if name == "renyi":
        try:
            return divergence_of(Renyi(float(order) if colon else 0.5))
        except ValueError:
            pass  # no number
    raise UsageError(
        found=f"divergence={choice!r}",
        expected=f"one of {list(get_args(Name))}, 'renyi:0.3' for another order, or an object of "
        "posterity.fusion.divergences",
        fix="Choose one of these for divergence.",
    )
