"""Give a tenant a quota, show what each tenant uses, and remove one.

    python examples/tenants.py DIRECTORY

The namespace of a key is its model, or model@salt: LMCache's `cache_salt` keeps tenants apart.
"""

import argparse
import select

import kvring

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
CHUNK_BYTES = 1 << 20


def key(number: int, tenant: str) -> str:
    """Return a key as LMCache makes it."""
    return f"{MODEL}@00000000@0@{number:064x}@{tenant}"


def main(path: str) -> None:
    """Store for two tenants, beyond the quota of one."""
    quotas = {f"{MODEL}@small": "8MiB"}
    with kvring.Connector(path, "256MiB", quotas=quotas) as connector:
        completion = select.poll()
        completion.register(connector.event_fd(), select.POLLIN)
        for tenant in ("small", "large"):
            for number in range(32):
                connector.submit_batch_set([key(number, tenant)], [bytes([number]) * CHUNK_BYTES])
                completion.poll()
                connector.drain_completions()
        for namespace, one in connector.usage().items():
            print(f"{namespace}: {one['keys']} chunks of 32, quota {one['quota_bytes']}")
        removed = connector.purge(f"{MODEL}@large")
        print(f"removed: {removed['keys']}")
        print("left:", sorted(connector.usage()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", help="where the store is made")
    main(parser.parse_args().directory)
