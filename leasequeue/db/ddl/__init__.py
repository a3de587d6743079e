"""Frozen DDL, one module per schema version.

A module holds two tuples of statements, UPGRADE and DOWNGRADE; ``{s}`` stands for the quoted schema name. Once a
version has been released its module never changes again.
"""
