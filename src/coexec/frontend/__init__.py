"""The only code that uses ONNX: models are read, simplified, grouped into tasks and cut."""

FORM = "8"
"""Version of the form of simplified models. Raise it in the commit after which `simplify`,
`rewrites`, `fused` or `coexec.zoo` give another model than before: everything in the cache that
belongs to a model, its plans included, is then made again."""
