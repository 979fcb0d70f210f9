"""`python -m experiments.personal`."""

from experiments.personal.run import main

main()
