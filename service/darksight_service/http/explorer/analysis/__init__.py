"""Numbers that the pages show, computed from stored points; no HTTP here."""
