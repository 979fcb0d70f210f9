"""How wide: the fewest units that predict what the weighted concatenation does, within nats."""

from collections.abc import Callable, Sequence


Widths = tuple[int, ...]
GROWTH = 1.25
"""How much wider the next try is, until one is good enough."""
RESOLUTION = 0.02
"""Share of its width up to which the narrowest is looked for."""


def narrowest(
    low: Sequence[int], high: Sequence[int], tolerance: float, divergence: Callable[[Widths], float]
) -> tuple[Widths, dict[Widths, float]]:
    """The narrowest widths of which the divergence is at most ``tolerance``, and all tries.

    Layers widen together, each by the same share of the way from ``low`` (as wide as the widest
    site) to ``high`` (all sites' units side by side): by quarters until one is good enough, then
    by halves between the last two. Divergences need not fall with every unit: a narrower one
    that happens to be as good can be missed.
    """
    room = max((top - bottom for bottom, top in zip(low, high, strict=True)), default=0)
    seen: dict[Widths, float] = {}

    def at(step: int) -> Widths:
        return tuple(
            bottom + -(-step * (top - bottom) // max(room, 1))
            for bottom, top in zip(low, high, strict=True)
        )

    def good(step: int) -> bool:
        if (widths := at(step)) not in seen:
            seen[widths] = divergence(widths)
        return seen[widths] <= tolerance

    widest = max(low, default=1)
    failed, step = -1, 0
    while not good(step) and step < room:
        failed, step = step, min(max(step + 1, int((widest + step) * GROWTH) - widest), room)
    while step - failed > max(1, int(RESOLUTION * (widest + failed))) and failed >= 0:
        middle = (failed + step) // 2
        failed, step = (failed, middle) if good(middle) else (middle, step)
    return at(step), seen
