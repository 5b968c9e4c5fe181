"""One file per revision, numbered."""
