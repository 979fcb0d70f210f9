"""The command line: a module for each verb, which is imported when its command is called."""

from posterity.cli.app import app as app
from posterity.cli.app import main as main
from posterity.cli.streams import DEBUG as DEBUG
from posterity.cli.streams import printable as printable
