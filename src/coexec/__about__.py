"""The version of this package, available without reading the metadata of installed packages."""

__all__ = ["__version__"]

__version__ = "0.1.0"
