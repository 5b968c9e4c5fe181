"""Compiles the kernel into the cache: a dozen CPU seconds that every process of the tests would spend by itself."""

from __future__ import annotations

from darksight_core.runtime.compilation import main

if __name__ == "__main__":
    main()
