"""Whether a picture shows data: an empty frame with its ticks and labels does not."""

from pathlib import Path

import numpy as np

COLOURED, GREY = 0.0005, 0.03
"""The least share of pixels in colours, or in greys between black and white, that data take."""


def shows_data(path: Path) -> bool:
    """Whether a PNG holds more than black text and lines on white."""
    from matplotlib import image

    pixels = np.asarray(image.imread(path), float)[..., :3]
    span = pixels.max(-1) - pixels.min(-1)
    grey = (span < 0.1) & (pixels.mean(-1) > 0.15) & (pixels.mean(-1) < 0.85)
    return bool((span > 0.2).mean() >= COLOURED or grey.mean() >= GREY)
