"""Reads of a store by other processes of this machine: ranks of a model that all have the same KV.

The owner of the store loads chunks into segments of memory that readers have mapped, and each
reader copies them into memory of its own. Readers that ask for the same chunks get the same
segment: the drive reads them once. They ask on the owner's socket (owner_socket.py), in JSON.
"""

from kvring.ranks.reader import Reader
from kvring.ranks.segments import SEGMENT_BYTES, taken_bytes
from kvring.ranks.server import ReadServer

__all__ = ["SEGMENT_BYTES", "ReadServer", "Reader", "taken_bytes"]
