"""What a torch.export archive may contain before torch reads it.

torch.export.load trusts its file: it unpickles what the file asks for, links compiled libraries, looks operators up by
any name below `torch` and evaluates shape expressions as Python. So everything here is a list of what is permitted. A
program that passes can still take any time and memory, which is why `darksight explain` runs it in a child process.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from darksight_core.explain.chain import ClassifierError

__all__ = ["check_program"]

_HOW = "save it with torch.export.save, not compiled, with plain tensors and a current torch"

_MEMBER = re.compile(
    r"archive_format|archive_version|byteorder|version|\.format_version|\.storage_alignment"
    r"|\.data/(version|serialization_id)"
    r"|models/model\.json|data/sample_inputs/model\.pt|extra/.*"
    r"|data/weights/(model_weights_config\.json|weight_\d+)|data/constants/(model_constants_config\.json|tensor_\d+)"
)
_PAYLOAD = re.compile(r"(weight|tensor)_\d+")
# aten.from_file and aten.save open files.
_OPERATOR = re.compile(
    r"torch\.ops\.(aten\.(?!from_file\b|save\b)|prims\.|higher_order\.)\w+(\.\w+)?|torch\.sym_\w+|torch\._sym_sqrt"
    r"|math\.\w+|_operator\.(getitem|add|sub|mul|truediv|floordiv|mod|pow|neg|pos|eq|ne|lt|le|gt|ge|and_|or_|xor)"
)
# Names in shape expressions, which sympy would evaluate as Python: its classes and properties, and torch's functions.
_WORDS = (
    "Symbol|Integer|Float|Rational|Add|Mul|Pow|Max|Min|Eq|Ne|Lt|Le|Gt|Ge|And|Or|Not|Equality|Unequality|StrictLessThan"
    "|LessThan|StrictGreaterThan|GreaterThan|Piecewise|ExprCondPair|true|false|True|False|floor|ceiling|Abs|Mod|FloorDiv"
    "|ModularIndexing|Where|PythonMod|CleanDiv|CeilToInt|FloorToInt|CeilDiv|LShift|RShift|PowByNatural|FloatPow"
    "|FloatTrueDiv|IntTrueDiv|IsNonOverlappingAndDenseIndicator|TruncToFloat|TruncToInt|RoundToInt|RoundDecimal|ToFloat"
    "|Identity|positive|negative|nonnegative|nonpositive|integer|real|finite|zero|nonzero|even|odd|rational|commutative"
    "|precision|evaluate"
)
# Possessive, so that no text makes the search take long.
_EXPRESSION = re.compile(rf"(?>\d+(?:\.\d+)?|'?[suzf]\d+'?|\b(?:{_WORDS})\b|[\s+\-*/%(),<>=~&|!])*+")


def check_program(archive: zipfile.ZipFile, names: dict[str, str], path: Path) -> None:
    """ClassifierError for an archive with anything that is not permitted.

    Parameters
    ----------
    archive
        The archive.
    names
        Its members by their name below the only directory.
    path
        The file, for messages.
    """
    if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
        raise ClassifierError(f"{path} has compressed members; {_HOW}")
    for name, member in names.items():
        if _MEMBER.fullmatch(name) is None:
            raise ClassifierError(f"{path} contains {name[:100]}, which is not permitted; {_HOW}")
        if name.endswith("_config.json"):
            _check_payloads(json.loads(archive.read(member)), path)
        if name.startswith("data/sample_inputs/"):
            _check_plain(archive.read(member), path)
    for kind, text in _code(json.loads(archive.read(names["models/model.json"]))):
        permitted = _OPERATOR if kind == "target" else _EXPRESSION
        if not isinstance(text, str) or permitted.fullmatch(text) is None:
            what = "operator" if kind == "target" else "expression"
            raise ClassifierError(f"{path} has the {what} {str(text)[:100]!r}, which is not permitted")


def _check_payloads(config: Any, path: Path) -> None:
    """Refuse weights and constants that torch would not read as plain tensors."""
    payloads = config.get("config") if isinstance(config, dict) else None
    if not isinstance(payloads, dict):
        raise ClassifierError(f"{path} is damaged; {_HOW}")
    for name, entry in payloads.items():
        is_plain = isinstance(entry, dict) and entry.get("use_pickle") is False
        if not is_plain or _PAYLOAD.fullmatch(str(entry.get("path_name"))) is None:
            raise ClassifierError(f"{path} has a pickled {name[:100]}, and pickles are not read; {_HOW}")


def _check_plain(content: bytes, path: Path) -> None:
    """Refuse example inputs that are not plain tensors."""
    try:
        torch.load(io.BytesIO(content), weights_only=True)
    except Exception as error:
        raise ClassifierError(
            f"{path} has example inputs that are not plain tensors, and pickles are not read"
        ) from error


def _code(value: object) -> Iterator[tuple[str, object]]:
    """Names of operators and texts of expressions anywhere in a program."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            if "target" in found and "inputs" in found:
                yield "target", found["target"]
            if "expr_str" in found:
                yield "expression", found["expr_str"]
            waiting += found.values()
        elif isinstance(found, list):
            waiting += found
