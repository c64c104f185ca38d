"""Names and quantities in Kubernetes."""

from __future__ import annotations

import re
from decimal import Decimal

# https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # RFC 1035, which Services need
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")  # RFC 1123
RESOURCE = re.compile(r"cpu|memory|ephemeral-storage|hugepages-\w+|[^/\s]+/[^/\s]+")
LONGEST_LABEL, LONGEST_SUBDOMAIN = 63, 253

_SUFFIXES = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_QUANTITY = re.compile(r"(?P<number>\d+(\.\d*)?|\.\d+)((?P<exponent>[eE][-+]?\d+)|(?P<suffix>[KMGTPE]i|[numkMGTPE])?)")


def quantity(text: str) -> Decimal | None:
    """The amount of a quantity such as 500m, 2 or 1.5Gi; None if `text` is not a quantity."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    number, suffix = Decimal(match["number"]), match["suffix"] or ""
    if match["exponent"]:
        return Decimal(match["number"] + match["exponent"])
    return number * (2 ** _BINARY[suffix] if suffix in _BINARY else Decimal(10) ** _SUFFIXES[suffix])
