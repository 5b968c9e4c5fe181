"""Everything for which a bundle is refused: one exception, with one stable code, for each defect.

A message names the file, what is wrong with it and what to do. `details` has the file under `source`, and more where
there is more to know.
"""

from __future__ import annotations

from darksight_core.errors import BundleError

__all__ = [
    "BundleExistsError",
    "BundleFormatError",
    "BundleHashError",
    "BundleMissingError",
    "BundleNotAFileError",
    "BundleNotFiniteError",
    "BundleOverlapError",
    "BundlePartsError",
    "BundleProbeError",
    "BundleSchemaError",
    "BundleSignatureError",
    "BundleSizeError",
    "BundleTruncatedError",
    "BundleUnreadableError",
    "BundleWriteError",
    "ExtraTensorError",
    "ManifestError",
    "ManifestHashError",
    "ManifestMissingError",
    "MissingTensorError",
    "TensorSpecError",
]


class BundleMissingError(BundleError):
    """There is no such file."""


class BundleNotAFileError(BundleError):
    """The path names a directory, a pipe or a device."""

    code = "bundle_not_a_file"


class BundleUnreadableError(BundleError):
    """The operating system does not let us read the file."""


class BundleSignatureError(BundleError):
    """The file has no signature, or not one of the required key."""


class BundleSizeError(BundleError):
    """The file is larger than any bundle may be."""


class BundleTruncatedError(BundleError):
    """The file ends too early, or goes on after its last tensor."""


class BundleFormatError(BundleError):
    """The file is not safetensors, or its header was altered."""


class ManifestMissingError(BundleError):
    """The file is safetensors, but not a bundle."""

    code = "bundle_manifest_missing"


class ManifestHashError(BundleError):
    """The manifest is not the one that was written."""

    code = "bundle_manifest_hash"


class ManifestError(BundleError):
    """The manifest lacks an entry, or has one of the wrong kind."""

    code = "bundle_manifest"


class BundleSchemaError(BundleError):
    """The bundle has a schema that this version does not read."""


class MissingTensorError(BundleError):
    """A tensor is missing."""

    code = "bundle_tensor_missing"


class ExtraTensorError(BundleError):
    """There is a tensor that does not belong to a bundle."""

    code = "bundle_tensor_extra"


class TensorSpecError(BundleError):
    """A tensor has another dtype or shape than the manifest says or its part needs."""

    code = "bundle_tensor_spec"


class BundleHashError(BundleError):
    """The tensors are not those that were written."""


class BundleNotFiniteError(BundleError):
    """A tensor has a NaN or infinite value."""


class BundlePartsError(BundleError):
    """The parts do not belong together, or one of them cannot work."""


class BundleProbeError(BundleError):
    """The scores of the probe rows are not those that were computed at fit time."""


class BundleOverlapError(BundleError):
    """Calibration rows were fit rows, so p-values would be wrong."""


class BundleExistsError(BundleError):
    """There is a file already where the bundle is to be written."""


class BundleWriteError(BundleError):
    """The operating system does not let us write the file."""
