"""The receiver's clock."""

import time


def unix_seconds() -> float:
    """Seconds since 1970."""
    return time.time()
