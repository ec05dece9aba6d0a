"""gRPC without its fork handlers, which end DataLoader workers."""

from __future__ import annotations

import os
import sys

_VARIABLE = "GRPC_ENABLE_FORK_SUPPORT"


def import_grpc() -> None:
    """Import gRPC, unless somebody has, with its fork handlers off, unless the environment asks for them.

    When a call is under way while the process forks, gRPC's handlers skip a part of their work, and the child
    then aborts: a training whose loader starts workers in that moment would end. Without them a child leaves
    the parent's connections alone, and telemetry that it starts itself has connections of its own.
    """
    if "grpc" in sys.modules or _VARIABLE in os.environ:
        return
    os.environ[_VARIABLE] = "0"
    try:
        import grpc

        # The library reads the variable when its first channel is made.
        grpc.insecure_channel("127.0.0.1:1").close()
    finally:
        del os.environ[_VARIABLE]
