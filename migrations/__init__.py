"""Revisions of the SQL schema; installed as `darksight_migrations`."""
