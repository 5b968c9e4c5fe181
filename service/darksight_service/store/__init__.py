"""Points, outcomes, counts and the audit trail in SQL, on SQLite or PostgreSQL.

`store.Store` is the whole of it. `ids`, `points` and `audit` do not import SQLAlchemy, so that a process can score and
record without its 27 MB.
"""
