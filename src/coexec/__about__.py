"""The version of this package, available without reading the metadata of installed packages."""

__version__ = "0.1.0"
