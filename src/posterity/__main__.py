"""``python -m posterity``, and the command ``posterity``."""

import os
import signal
from typing import Any


def main() -> None:
    """Import the commands and run one; an interrupt before that has nothing to lose."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    from posterity.cli import main

    signal.signal(signal.SIGINT, handler)
    main()


def _leave(number: int, frame: Any) -> None:
    # Not by an exception: one that comes amid an import may be lost.
    os._exit(128 + number)


if __name__ == "__main__":
    main()
