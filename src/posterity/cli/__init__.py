"""The command line: one file a group of commands."""

from posterity.cli import demo, federate, forget, fuse  # noqa: F401 (registers the commands)
from posterity.cli.app import app, main
from posterity.cli.failures import DEBUG, printable

__all__ = ["DEBUG", "app", "main", "printable"]
