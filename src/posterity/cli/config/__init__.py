"""Configurations of the command line: TOML files, and files of records."""
