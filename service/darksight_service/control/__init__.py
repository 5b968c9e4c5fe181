"""Models, versions and policies: audit trail, state, registry, regions."""
