"""A deterministic prompt made of real text, without any download."""

import argparse
import inspect

VOCABULARY_SIZE = 256


def prompt_tokens(token_count: int) -> list[int]:
    """Return ``token_count`` tokens, one for each byte of a text that every Python carries.

    The text is the source of the standard library's ``argparse``; it is repeated when it is
    shorter than the prompt.
    """
    if token_count < 2:
        raise ValueError(f"a prompt needs at least 2 tokens, not {token_count}")
    text = inspect.getsource(argparse).encode()
    repeats = -(-token_count // len(text))
    return list((text * repeats)[:token_count])
