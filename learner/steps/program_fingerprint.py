"""Fingerprints of traced programs, which are equal if two programs compute the same function of their arguments.

A fingerprint covers primitives with their parameters, nested programs, the shapes and dtypes of arguments, and the
values of all constants. It does not depend on the process, its working directory, the hash seed, or the location of the
source code. Host functions that a program calls count only by their qualified names.
"""

import dataclasses
import enum
import functools
import hashlib
import re
from typing import Any

import jax
import numpy as np

from learner.util.jaxprs import programs_in
from learner.util.trees import is_key

# Texts that change with the process or the location of the code: addresses, files with line numbers, files.
_INCIDENTAL = re.compile(r" at 0x[0-9a-fA-F]+|0x[0-9a-fA-F]{6,}|( at |from file )?[^\s'\"(]*\.py(:\d+|\b)(, line \d+)?")
_NAMES_OF_CODE = {"DebugInfo", "NameAndSrcInfo", "SourceInfo", "FrameInfo", "Traceback"}
_PLAIN = {type(None), bool, int, float, complex, bytes}
_SETTINGS = ("compute_type", "threefry_partitionable", "xla_metadata")
_SMALL = 64  # bytes of a constant that is written to the text without hashing


def jaxpr_fingerprint(closed_jaxpr: Any, unused: bool = False) -> str:
    """Return the SHA-256 of a traced program's canonical form, 64 hexadecimal digits.

    Args:
      closed_jaxpr: the result of `jax.make_jaxpr(fn)(*arguments)` or `jax.jit(fn).trace(*arguments).jaxpr`.
      unused: True to include equations that lead to no output and have no effect, and constants that only they use.

    >>> import jax.numpy as jnp
    >>> def program(rate):
    ...     return jax.make_jaxpr(lambda x: x - rate * x)(jnp.ones(3))
    >>> jaxpr_fingerprint(program(0.1)) == jaxpr_fingerprint(program(0.1))
    True
    >>> jaxpr_fingerprint(program(0.1)) == jaxpr_fingerprint(program(0.2))
    False
    """
    return _Canonical(unused).program(closed_jaxpr)


def has_own_rules(jaxpr: Any) -> bool:
    """Return True if a traced program has functions with custom differentiation rules that are not JAX's own. The rules
    are Python functions, which only a traced gradient shows.
    """
    jax_directory = str(jax.__path__[0])
    for equation in jaxpr.eqns:
        inner = programs_in(equation)
        if equation.primitive.name.startswith(("custom_jvp", "custom_vjp")):
            if not inner or any(jax_directory not in str(getattr(x, "debug_info", "")) for x in inner):
                return True
        elif any(map(has_own_rules, inner)):
            return True
    return False


def _live(jaxpr: Any) -> list[Any]:
    """Return the equations that lead to an output or have an effect."""
    needed, live = _variables(jaxpr.outvars), []
    for equation in reversed(jaxpr.eqns):
        if equation.effects or not needed.isdisjoint(equation.outvars):
            needed |= _variables(equation.invars)
            live.append(equation)
    return live[::-1]


def _variables(atoms: Any) -> set[Any]:
    return {x for x in atoms if not hasattr(x, "val")}  # literals have a value


class _Canonical:
    """A writer of canonical texts, which caches the texts of objects that occur in many equations."""

    def __init__(self, unused: bool = False) -> None:
        self._unused = unused
        self._known: dict[int, str] = {}
        self._referenced: list[Any] = []  # keeps the objects alive, as Python reuses identities
        self._dtypes: dict[Any, str] = {}

    def program(self, closed: Any) -> str:
        """Return the digest of a closed or an open program."""
        jaxpr, consts = (closed.jaxpr, closed.consts) if hasattr(closed, "jaxpr") else (closed, ())
        return hashlib.sha256("\n".join(self._lines(jaxpr, consts)).encode()).hexdigest()

    def _lines(self, jaxpr: Any, consts: Any) -> list[str]:
        equations, constants = jaxpr.eqns, jaxpr.constvars
        if not self._unused:
            equations = _live(jaxpr)
            used = _variables(x for atoms in (jaxpr.outvars, *(e.invars for e in equations)) for x in atoms)
            constants = [var for var in constants if var in used]
        values = dict(zip(jaxpr.constvars, consts, strict=False))  # empty for an open program
        texts = {var: str(i) for i, var in enumerate([*constants, *jaxpr.invars])}  # of variables
        lines = [self._type(var.aval) for var in texts]
        lines.append(f"constants {[self.value(values[var]) for var in constants if var in values]}")
        count, literal, known, texts_of = len(texts), self._literal, self.known, self._known.get
        for equation in equations:
            # Types of results follow from the arguments and are left out, as are parameters that are None.
            name, context = equation.primitive.name, equation.ctx
            words = [name, texts_of(id(context)) or known(context)]
            words += [literal(x) if hasattr(x, "val") else texts[x] for x in equation.invars]
            for key, value in sorted(equation.params.items()):
                if value is not None and (key != "name" or name != "jit"):  # a jitted function may be renamed
                    words += key, texts_of(id(value)) or known(value)
            lines.append(" ".join(words))
            for var in equation.outvars:
                texts[var] = str(count)
                count += 1
        lines.append(" ".join(["returns", *(literal(x) if hasattr(x, "val") else texts[x] for x in jaxpr.outvars)]))
        return lines

    def _type(self, aval: Any) -> str:
        dtype = getattr(aval, "dtype", None)
        return f"{type(aval).__name__} {self._dtype(dtype)}{getattr(aval, 'shape', '')}"

    def _dtype(self, dtype: Any) -> str:
        if dtype not in self._dtypes:
            self._dtypes[dtype] = str(dtype)
        return self._dtypes[dtype]

    def _literal(self, literal: Any) -> str:
        value = literal.val
        if isinstance(value, float | int):  # may have JAX's own types, with the dtype in the aval
            number = float.__repr__(value) if isinstance(value, float) else int(value)
            return f"{self._dtype(literal.aval.dtype)} {number}"
        return self.known(value) if isinstance(value, jax.Array) else self._array(np.asarray(value))

    def known(self, value: Any) -> str:
        """Return the text of a value, looked up by its identity."""
        text = self._known.get(id(value))
        if text is None:
            self._referenced.append(value)
            text = self._known[id(value)] = self.value(value)
        return text

    def _array(self, array: np.ndarray) -> str:
        if array.dtype.hasobject:
            return f"object{array.shape}"  # its bytes are addresses
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)  # not copied, as it may be large
        content = data.tobytes().hex() if data.size <= _SMALL else hashlib.sha256(data.data).hexdigest()
        return f"{self._dtype(array.dtype)}{array.shape or ''}:{content}"

    def value(self, value: Any) -> str:
        """Return the text of a parameter of an equation, or of a constant."""
        kind = type(value)
        if kind in _PLAIN:
            return repr(value)
        if kind is tuple and set(map(type, value)) <= {int}:  # a shape, or axes
            return repr(value)
        if kind is str:
            return repr(_INCIDENTAL.sub("", value))
        if isinstance(value, jax.Array | np.ndarray | np.generic) or _is_array(value):
            return self._constant(value)
        if isinstance(value, tuple | list):
            # The fields of named tuples stand in their order.
            return f"{type(value).__name__}({','.join(map(self.known, value))})"
        if isinstance(value, np.dtype):
            return self._dtype(value)
        if kind.__name__ == "JaxprEqnContext":  # the settings that an equation was traced under
            return self.value([getattr(value, name, None) for name in _SETTINGS])
        if hasattr(value, "eqns") or hasattr(getattr(value, "jaxpr", None), "eqns"):
            return self.program(value)
        if isinstance(value, jax.sharding.Sharding):  # on whatever devices
            return f"{kind.__qualname__} {getattr(value, 'spec', '')}"
        if hasattr(value, "axis_names") and hasattr(value, "axis_types"):  # a mesh
            return f"{kind.__qualname__} {value.axis_names}"
        if isinstance(value, enum.Enum):
            return f"{type(value).__qualname__}.{value.name}"
        if isinstance(value, dict):
            return f"{{{','.join(sorted(f'{self.value(k)}:{self.value(v)}' for k, v in value.items()))}}}"
        if isinstance(value, set | frozenset):
            return f"{{{','.join(sorted(map(self.value, value)))}}}"
        if isinstance(value, functools.partial):
            return f"partial({self.value(value.func)},{self.value(value.args)},{self.value(value.keywords)})"
        return self._object(value)

    def _constant(self, value: Any) -> str:
        if isinstance(value, jax.Array):
            if is_key(value):
                return f"{self._dtype(value.dtype)} {self._array(np.asarray(jax.random.key_data(value)))}"
            if not value.is_fully_addressable and not value.is_fully_replicated:
                return self._type(value)  # other processes have parts of it
        return self._array(np.asarray(value))

    def _object(self, value: Any) -> str:
        name = getattr(value, "__qualname__", None)
        kind = type(value).__qualname__
        if name is not None:  # of a function or a class
            return str(name)
        if kind in _NAMES_OF_CODE:
            return kind
        if kind == "WrappedFun":
            return f"{kind}({self.value(value.f)})"
        if dataclasses.is_dataclass(value):
            fields = [f"{f.name}={self.value(getattr(value, f.name, None))}" for f in dataclasses.fields(value)]
            return f"{kind}({','.join(fields)})"
        return f"{kind} {_INCIDENTAL.sub('', repr(value))}"


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__") and not isinstance(value, type)
