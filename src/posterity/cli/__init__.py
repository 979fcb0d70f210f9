"""The command line: one file a verb, which registers its command when it is imported."""

from posterity.cli import demo, diff, federate, forget, fuse, inspect, verify  # noqa: F401
from posterity.cli.app import app, main
from posterity.cli.failures import DEBUG, printable

__all__ = ["DEBUG", "app", "main", "printable"]
