"""The version of this package: known without a look at what is installed."""

__all__ = ["__version__"]

__version__ = "0.1.0"
