"""The error for a model whose operators do not fit their tensors."""

from coexec.errors import ModelError, first_line


class UnfitError(ModelError):
    """Shape inference or ONNX Runtime refuses a model, because of the model or of given shapes."""

    def __init__(self, what: str, error: BaseException | str) -> None:
        """The error of a step that failed.

        Args:
            what: the step that failed, as in "ONNX Runtime does not run the model".
            error: its first line is the reason.
        """
        self.reason = error if isinstance(error, str) else first_line(error)
        super().__init__(
            f"{what}: {self.reason}; check it with onnx.checker.check_model(path, full_check=True)"
        )
