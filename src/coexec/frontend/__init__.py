"""The only code that knows ONNX: models are read, simplified, grouped into tasks and cut."""

FORM = "8"
"""Of simplified models. Raised in the commit that makes `simplify`, `rewrites`, `fused` or
`coexec.zoo` give another model than before: what is cached of models, their plans included, is then
made anew."""
