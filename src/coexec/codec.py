"""One codec between dataclasses and values that JSON can hold, by the types of the fields.

| type of a field | in JSON |
|---|---|
| a dataclass | an object with a member for each field |
| a NamedTuple, `tuple`, `list`, `frozenset` | a list |
| a mapping with texts as keys | an object |
| an enum | its value |
| `bytes` | a text in base64 |
| `str`, `int`, `float`, `bool`, None, Literal, Any | itself |

Unions take the first alternative that fits. `decode` converts nothing: the text "3" is no number. A
field of another type is an error as soon as a value has to be encoded or decoded.
"""

import base64
import dataclasses
import enum
import math
import reprlib
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import cycle
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

_T = TypeVar("_T")
_Decoder = Callable[[Any], Any]

_SCALARS: Mapping[Any, tuple[tuple[type, ...], str]] = {
    str: ((str,), "a text"),
    int: ((int,), "a whole number"),
    float: ((float, int), "a number"),
    bool: ((bool,), "true or false"),
    type(None): ((type(None),), "null"),
}


class CodecError(ValueError):
    """Data without the form of a type: the problem, and the path of the value that has it."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(f"{path.removeprefix('.')}: {problem}" if path else problem)
        self._problem, self._path = problem, path

    def inside(self, step: str) -> "CodecError":
        """The same error with the path from the object or list that holds the value."""
        return CodecError(self._problem, step + self._path)


def encode(value: Any) -> Any:
    """``value`` as objects, lists, texts and numbers for ``json.dumps``; `decode` is the inverse.

    Raises:
        TypeError: a value inside has a type that the codec does not support.
    """
    # The exact type: a float64 of numpy is a float, too, and is refused.
    if type(value) in _SCALARS:
        return value
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping) and all(type(key) is str for key in value):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, frozenset):
        return [encode(item) for item in sorted(value)]
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def decode(form: type[_T], data: Any) -> _T:
    """``data``, as ``json.loads`` returns it, as a value of the type ``form``.

    Raises:
        CodecError: a field is missing or unknown, or a value has another type.
        TypeError: the codec does not support the type of a value.
    """
    return cast(_T, _decoder(cast(Any, form))(data))


@cache
def _decoder(form: Any) -> _Decoder:
    """A function that decodes values of a type. It is made once, as starts decode long plans."""
    origin, arguments = get_origin(form), get_args(form)
    if form is Any:
        return lambda data: data
    if form in _SCALARS:
        return _scalar(form)
    if form is bytes:
        return _decode_bytes
    if origin is Literal:
        return _choice({choice: choice for choice in arguments})
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if dataclasses.is_dataclass(form):
        return _object(form)
    if isinstance(form, type) and issubclass(form, enum.Enum):
        return _choice({member.value: member for member in form})
    if isinstance(form, type) and issubclass(form, tuple):  # a NamedTuple
        hints = get_type_hints(form)
        return _list(tuple(hints.values()), len(hints), lambda items: form(*items))
    if origin is tuple and arguments[-1] is not Ellipsis:
        return _list(arguments, len(arguments), tuple)
    if origin in (tuple, list, frozenset):
        return _list(arguments[:1], None, origin)
    if origin in (dict, Mapping) and arguments[0] is str:
        return _mapping(_decoder(arguments[1]))
    return partial(_refuse, form)


def _error(data: Any, description: str) -> CodecError:
    return CodecError(f"{reprlib.repr(data)} is not {description}")


def _scalar(form: type) -> _Decoder:
    accepted, description = _SCALARS[form]

    def decode_scalar(data: Any) -> Any:
        if type(data) not in accepted:
            raise _error(data, description)
        return float(data) if form is float else data

    return decode_scalar


def _decode_bytes(data: Any) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (TypeError, ValueError):
        raise _error(data, "a text in base64") from None


def _refuse(form: Any, _: Any) -> Any:
    raise TypeError(f"the codec does not support the type {form}")


def _choice(choices: Mapping[Any, Any]) -> _Decoder:
    by_type = {(type(key), key): value for key, value in choices.items()}  # 1 is not True

    def decode_choice(data: Any) -> Any:
        if isinstance(data, dict | list) or (type(data), data) not in by_type:
            raise _error(data, " or ".join(map(repr, choices)))
        return by_type[type(data), data]

    return decode_choice


def _union(forms: Sequence[Any]) -> _Decoder:
    none = type(None)
    # null first: an error then names the problem of the other alternative.
    decoders = [_decoder(form) for form in sorted(forms, key=lambda form: form is not none)]

    def decode_union(data: Any) -> Any:
        for decoder in decoders[:-1]:
            try:
                return decoder(data)
            except CodecError:
                continue
        return decoders[-1](data)

    return decode_union


def _object(form: Any) -> _Decoder:
    hints, fields = get_type_hints(form), dataclasses.fields(form)
    decoders = {field.name: _decoder(hints[field.name]) for field in fields}
    required = [f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING]

    def decode_object(data: Any) -> Any:
        if type(data) is not dict:
            raise _error(data, f"an object with {', '.join(decoders)}")
        for name in required:
            if name not in data:
                raise CodecError(f"the field {name!r} is missing")
        values = {}
        for name, item in data.items():
            if name not in decoders:
                raise CodecError(f"the field {name!r} is unknown; fields: {', '.join(decoders)}")
            try:
                values[name] = decoders[name](item)
            except CodecError as error:
                raise error.inside(f".{name}") from None
        return form(**values)

    return decode_object


def _mapping(decoder: _Decoder) -> _Decoder:
    def decode_mapping(data: Any) -> Any:
        if type(data) is not dict:
            raise _error(data, "an object")
        values = {}
        for name, item in data.items():
            try:
                values[name] = decoder(item)
            except CodecError as error:
                raise error.inside(f"[{name!r}]") from None
        return values

    return decode_mapping


def _list(forms: Sequence[Any], length: int | None, collect: Callable[[Any], Any]) -> _Decoder:
    """Decode lists: of ``length`` items with one form each, or of any length with the first."""
    decoders = [_decoder(form) for form in forms]
    description = "a list" if length is None else f"a list of {length}"
    # Regions are most of a long plan: lists of whole numbers are checked at once.
    uniform = {forms[0]} if length is None and forms[0] in (int, str, bool) else None

    def decode_list(data: Any) -> Any:
        if type(data) is not list or length not in (None, len(data)):
            raise _error(data, description)
        if uniform is not None and uniform.issuperset(map(type, data)):
            return collect(data)
        values: list[Any] = []
        try:
            for decoder, item in zip(cycle(decoders), data, strict=False):
                values.append(decoder(item))
        except CodecError as error:
            raise error.inside(f"[{len(values)}]") from None
        return collect(values)

    return decode_list


def without_nan(value: Any) -> Any:
    """``value`` with None in place of infinity and NaN, which JSON does not have; keys of mappings
    become texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): without_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(each) for each in value]
    return value
