"""The version of the library, on its own so that every module may ask for it."""

__version__ = "0.1.0"
