"""Logarithm, exponential and rank in loops that become vector instructions.

Those of the C library are called for one number at a time: with them a row of 100 classes takes 1.7 times as long, one
of 1,000 twice as long.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

from darksight_core.rows.simplex import Floats

Ints: TypeAlias = NDArray[np.int64]
Function = TypeVar("Function", bound=Callable[..., Any])

# A product and a sum may be rounded once instead of twice, and sums may be taken in any order, so that several terms
# are worked on at once; NaN stays NaN.
OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": {"contract", "reassoc"}, "error_model": "numpy"}
# Python never calls what is a part of the kernel, and what would let it is a sixth of the compilation.
_PART = {**OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def compiled(function: Function) -> Function:
    """Let numba compile the function as a part of those that call it."""
    dispatcher: Function = numba.njit(**_PART)(function)
    return dispatcher


@compiled
def log_and_inverse(value: float) -> tuple[float, float]:
    """log x and 1 / x of a positive number that is neither tiny nor huge, by one division.

    x = 2ⁿ m with √½ <= m < √2, and log m is a polynomial in (m - 1) / (m + 1) (fdlibm's); right to 1e-15.
    """
    bits = np.float64(value).view(np.int64)
    power = (bits - 0x3FE6A09E667F3BCD) >> 52
    mantissa = np.int64(bits - (power << 52)).view(np.float64)
    inverse = 1.0 / (value * (mantissa + 1.0))
    s = (mantissa - 1.0) * value * inverse
    z = s * s
    far = 0.2222219843214978396 + z * (0.1818357216161805012 + z * (0.1531383769920937332 + z * 0.147981986051165859))
    series = z * (0.666666666666673513 + z * (0.3999999999940941908 + z * (0.2857142874366239149 + z * far)))
    return power * 0.6931471805599453 + s * (2.0 + series), (mantissa + 1.0) * inverse


@compiled
def exponentials(values: Floats, results: Floats) -> None:
    """Write the exponentials of numbers, which may be the same array; what is below -700 counts as that.

    exp x = 2ⁿ exp r with |r| <= log √2, and exp r is its series; right to 1e-14 of itself.
    """
    powers = results.view(np.int64)
    for k in range(len(values)):
        value = values[k] if values[k] > -700.0 else -700.0
        power = math.floor(value * 1.4426950408889634 + 0.5)
        r = value - power * 0.6931471805599453
        far = 1 / 5040 + r * (1 / 40320 + r * (1 / 362880 + r * (1 / 3628800 + r * (1 / 39916800))))
        near = 0.5 + r * (1 / 6 + r * (1 / 24 + r * (1 / 120 + r * (1 / 720 + r * far))))
        results[k] = 1.0 + r * (1.0 + r * near)
        powers[k] += np.int64(power) << 52


@compiled
def count_not_above(ascending: NDArray[Any], value: float) -> int:
    """How many entries are not above the value; the steps do not depend on it."""
    low, length = 0, len(ascending)
    if length == 0:
        return 0
    while length > 1:
        half = length >> 1
        low += half if ascending[low + half - 1] <= value else 0
        length -= half
    return low + (1 if ascending[low] <= value else 0)


@compiled
def two_largest(values: Floats) -> tuple[int, int]:
    """Numbers of the two largest entries; ties go to the first one."""
    first, second = (1, 0) if values[1] > values[0] else (0, 1)
    for k in range(2, len(values)):
        if values[k] > values[second]:
            if values[k] > values[first]:
                first, second = k, first
            else:
                second = k
    return first, second
