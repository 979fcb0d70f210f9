"""Which divergence a name stands for."""

from typing import Any, Literal

from posterity.errors import UsageError
from posterity.fusion.divergences.discrepancy import Discrepancy
from posterity.fusion.divergences.jeffreys import Jeffreys
from posterity.fusion.divergences.renyi import Renyi
from posterity.fusion.divergences.transport import OptimalTransport
from posterity.fusion.divergences.wasserstein import Wasserstein
from posterity.fusion.geometry import Divergence

NAMES = ("reverse", "forward", "jeffreys", "renyi", "wasserstein", "optimal-transport")
Name = Literal["reverse", "forward", "jeffreys", "renyi", "wasserstein", "optimal-transport"]
OTHERS = {
    "jeffreys": Jeffreys,
    "renyi": Renyi,
    "wasserstein": Wasserstein,
    "optimal-transport": OptimalTransport,
}


def divergence_of(given: Any) -> Divergence | Discrepancy:
    """The divergence that is asked for: by name, as ``"renyi:0.3"`` with an order, or itself.

    Raises:
        UsageError: for anything else.
    """
    if isinstance(given, Renyi) and given.order == 1:
        return Divergence.REVERSE  # which it is
    if isinstance(given, Divergence | Discrepancy):
        return given
    name, colon, order = given.partition(":") if isinstance(given, str) else ("", "", "")
    if not colon and name in list(Divergence):
        return Divergence(name)
    if not colon and name in OTHERS:
        return OTHERS[name]()
    if name == "renyi":
        try:
            return divergence_of(Renyi(float(order)))
        except ValueError:
            pass  # no number
    raise UsageError(
        found=f"divergence={given!r}",
        expected=f"one of {list(NAMES)}, 'renyi:0.3' for another order, or an object of "
        "posterity.fusion.divergences",
        fix="Choose one of these for divergence.",
    )
