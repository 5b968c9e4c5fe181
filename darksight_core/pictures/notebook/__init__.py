"""The interactive map for Jupyter, VS Code, Colab and marimo.

    from darksight_core import read_bundle
    from darksight_core.pictures.notebook import MapWidget

    MapWidget.of_bundle(read_bundle("model.safetensors"))

Needs the extra `notebook`.
"""

from __future__ import annotations

from darksight_core.pictures.notebook.widget import MapWidget

__all__ = ["MapWidget"]
