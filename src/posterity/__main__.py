"""``python -m posterity``, and the command ``posterity``."""

import signal

from posterity.interrupts import leave


def main() -> None:
    """Import the commands and run one; an interrupt before its work has nothing to lose."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)
    from posterity.cli import main

    main()


if __name__ == "__main__":
    main()
