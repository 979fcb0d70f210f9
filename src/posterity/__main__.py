"""The entry point of ``python -m posterity``, and of the command ``posterity``."""

import signal

from posterity.runtime.interrupts import leave


def main() -> None:
    """Import the commands and run one; an interrupt during the imports ends the process at once."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)
    from posterity.cli import main

    main()


if __name__ == "__main__":
    main()
