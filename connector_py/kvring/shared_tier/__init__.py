"""The tier that many nodes share, behind the store of each: client, checksums, deadlines."""
