"""The `HOURBELL_` variables of an environment that were set for Hourbell.

In Kubernetes a container gets variables for every Service of its namespace. Those of a Service
whose name begins with `hourbell` look like settings: `HOURBELL_PORT=tcp://10.0.0.1:8080`,
`HOURBELL_API_SERVICE_HOST=10.0.0.2`. They are left out here, and only here.
"""

import re
from collections.abc import Mapping

PREFIX = "HOURBELL_"
# What the kubelet sets for the Services `hourbell` and `hourbell-…`.
_OF_A_SERVICE = re.compile(r"HOURBELL(_\w+)?_SERVICE_(HOST|PORT(_\w+)?)")
_OF_A_PORT = re.compile(r"HOURBELL(_\w+)?_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?")
_PORT = re.compile(r"HOURBELL(_\w+)?_PORT")
_PORT_URL = re.compile(r"(tcp|udp|sctp)://")  # unlike the value of our own HOURBELL_PORT


def hourbell_variables(env: Mapping[str, str]) -> dict[str, str]:
    """The variables with our prefix, without those that Kubernetes adds and those without a value."""
    return {
        name: value
        for name, value in env.items()
        if name.startswith(PREFIX) and value and not _is_injected(name, value)
    }


def _is_injected(name: str, value: str) -> bool:
    if _OF_A_SERVICE.fullmatch(name) or _OF_A_PORT.fullmatch(name):
        return True
    return _PORT.fullmatch(name) is not None and _PORT_URL.match(value) is not None
