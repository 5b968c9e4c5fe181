"""Why a bundle is refused: one stable code for each defect.

A message names the file, what is wrong with it and what to do. `details` has the file under `source`, and more where
there is more to know.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from darksight_core.errors import BundleError

__all__ = ["Code", "defect"]

Code: TypeAlias = Literal[
    "bundle_missing",  # there is no such file
    "bundle_not_a_file",  # the path names a directory, a pipe or a device
    "bundle_unreadable",  # the operating system does not let us read the file
    "bundle_signature",  # the file has no signature, or not one of the required key
    "bundle_size",  # the file is larger than any bundle may be
    "bundle_truncated",  # the file ends too early, or goes on after its last tensor
    "bundle_format",  # the file is not safetensors, or its header was altered
    "bundle_manifest_missing",  # the file is safetensors, but not a bundle
    "bundle_manifest_hash",  # the manifest is not the one that was written
    "bundle_manifest",  # the manifest lacks an entry, or has one of the wrong kind
    "bundle_schema",  # the bundle has a schema that this version does not read
    "bundle_tensor_missing",  # a tensor is missing
    "bundle_tensor_extra",  # there is a tensor that does not belong to a bundle
    "bundle_tensor_spec",  # a tensor has another dtype or shape than the manifest says or its part needs
    "bundle_hash",  # the tensors are not those that were written
    "bundle_not_finite",  # a tensor has a NaN or infinite value
    "bundle_parts",  # the parts do not belong together, or one of them cannot work
    "bundle_probe",  # the scores of the probe rows are not those that were computed at fit time
    "bundle_overlap",  # calibration rows were fit rows, so p-values would be wrong
    "bundle_exists",  # there is a file already where the bundle is to be written
    "bundle_write",  # the operating system does not let us write the file
]


def defect(code: Code, source: str, text: str, **details: object) -> BundleError:
    """An error with this code whose message names the bundle.

    >>> print(defect("bundle_overlap", "a.safetensors", "calibration rows are fit rows."))
    a.safetensors: calibration rows are fit rows.
    """
    error = BundleError(f"{source}: {text}", source=source, **details)
    error.code = code
    return error
