"""The version of the library, in a module without imports."""

__version__ = "0.1.0"
