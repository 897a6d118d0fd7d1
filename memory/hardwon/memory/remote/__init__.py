"""A library that another process serves over HTTP; see `RemoteLibrary`."""

from .library import RemoteLibrary as RemoteLibrary
