"""The one file that a fit writes and everything online reads.

container   tensors and a manifest in a safetensors file, where no byte can change unnoticed
manifest    what each entry of the manifest is, and the bounds of its numbers
parts       what they mean: map, density, outlier score, calibration, references, probes, row sketches
differences what differs between two bundles, as text
defects     every reason to refuse one
"""

from __future__ import annotations

from darksight_core.bundle.container import MAX_FILE, MAX_HEADER, SCHEMA_VERSION, version_of
from darksight_core.bundle.differences import diff
from darksight_core.bundle.files import (
    TOLERANCE,
    decode_bundle,
    encode_bundle,
    read_bundle,
    refuse_existing,
    write_bundle,
)
from darksight_core.bundle.manifest import MAX_CALIBRATION, MAX_STEPS
from darksight_core.bundle.parts import (
    MAX_PROBES,
    MAX_REFERENCES,
    TOP_CLASSES,
    Bundle,
    Probes,
    Reference,
    SplitSketches,
    make_manifest,
)

__all__ = [
    "MAX_CALIBRATION",
    "MAX_FILE",
    "MAX_HEADER",
    "MAX_PROBES",
    "MAX_REFERENCES",
    "MAX_STEPS",
    "SCHEMA_VERSION",
    "TOLERANCE",
    "TOP_CLASSES",
    "Bundle",
    "Probes",
    "Reference",
    "SplitSketches",
    "decode_bundle",
    "diff",
    "encode_bundle",
    "make_manifest",
    "read_bundle",
    "refuse_existing",
    "version_of",
    "write_bundle",
]
