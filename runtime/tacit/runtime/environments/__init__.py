"""Worlds behind one protocol; see `tacit.runtime.protocols.Environment`."""
