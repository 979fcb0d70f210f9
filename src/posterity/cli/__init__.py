"""The command line: a module for each verb, which is imported when its command is called."""

from posterity.cli.app import app, main
from posterity.cli.streams import DEBUG, printable

__all__ = ["DEBUG", "app", "main", "printable"]
