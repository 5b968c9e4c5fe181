"""From a scored call to SQL: record codec, spool, drain."""
