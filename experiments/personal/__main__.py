"""`python -m experiments.personal`."""

from experiments import harness
from experiments.personal.run import run

harness.command(run)
