"""The only code that reads ONNX: models are read, checked, simplified and grouped into tasks."""

FORM = "11"
"""Version of the form of simplified models. Raise it in the commit after which `basic`, `rewrites`,
`simplify`, `fused` or `coexec.research.zoo` give another model than before: everything in the cache
that belongs to a model, its plans included, is then made again."""
