"""The version of the package, for whoever may not import the package's root."""

__version__ = "0.1.0"
