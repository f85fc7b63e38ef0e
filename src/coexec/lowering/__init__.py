"""A model in the operators and layouts of an engine, and the modules that are cut from it."""
