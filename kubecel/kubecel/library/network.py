"""IP addresses and CIDRs.

Source: k8s.io/apiserver/pkg/cel/library/ip.go and cidr.go; Go's net/netip for the kinds of addresses.
"""

import dataclasses
import ipaddress
import re
from typing import ClassVar, Final

from kubecel.budget import Budget
from kubecel.checking import function, method
from kubecel.errors import CelRuntimeError, quoted
from kubecel.types import BOOL, CIDR, INT, IP, STRING, Type
from kubecel.values import OpaqueValue

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_MAX_LENGTH: Final = 64
_BITS: Final = re.compile(r"0|[1-9][0-9]{0,2}", re.ASCII)
_BROADCAST: Final = ipaddress.IPv4Address("255.255.255.255")
_LOCAL_MULTICAST: Final = ipaddress.IPv4Network("224.0.0.0/24")


@dataclasses.dataclass(frozen=True, slots=True)
class IPAddress(OpaqueValue):
    """An IPv4 or IPv6 address."""

    address: Address
    cel_type: ClassVar[Type] = IP


@dataclasses.dataclass(frozen=True, slots=True)
class Prefix(OpaqueValue):
    """An address with the length of its network prefix. The host bits are kept."""

    address: Address
    bits: int
    cel_type: ClassVar[Type] = CIDR

    @property
    def network(self) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
        return ipaddress.ip_network((self.address, self.bits), strict=False)


def parse_ip(text: str) -> IPAddress:
    """Parse an address. Zones, IPv4-mapped IPv6 addresses and leading zeros are errors.

    Raises:
        CelRuntimeError: the text is not an address.
    """
    return IPAddress(_address(text, "an IP address"))


def _address(text: str, what: str) -> Address:
    plain = len(text) <= _MAX_LENGTH and "%" not in text and "/" not in text
    try:
        address = ipaddress.ip_address(text if plain else "")
    except ValueError:
        raise CelRuntimeError(f"{quoted(text)} is not {what}") from None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        raise CelRuntimeError(f"'{text}' is not {what}: write IPv4 addresses without ::ffff:")
    return address


def parse_cidr(text: str) -> Prefix:
    """Parse an address and a prefix length, e.g. `10.0.0.0/8`.

    Raises:
        CelRuntimeError: the text is not a CIDR.
    """
    head, slash, bits = text[: _MAX_LENGTH + 1].rpartition("/")
    address = _address(head if slash else text, "a CIDR")
    if not slash or not _BITS.fullmatch(bits) or int(bits) > address.max_prefixlen:
        raise CelRuntimeError(f"{quoted(text)} is not a CIDR: write address/bits, e.g. 10.0.0.0/8")
    return Prefix(address, int(bits))


def _read_ip(budget: Budget, text: str) -> IPAddress:
    budget.scan(len(text))
    return parse_ip(text)


def _read_cidr(budget: Budget, text: str) -> Prefix:
    budget.scan(len(text))
    return parse_cidr(text)


def _is_ip(budget: Budget, text: str) -> bool:
    budget.scan(len(text))
    try:
        parse_ip(text)
    except CelRuntimeError:
        return False
    return True


def _is_cidr(budget: Budget, text: str) -> bool:
    budget.scan(len(text))
    try:
        parse_cidr(text)
    except CelRuntimeError:
        return False
    return True


def _is_canonical(budget: Budget, text: str) -> bool:
    budget.scan(2 * len(text))
    return str(parse_ip(text).address) == text


def _is_local_multicast(value: IPAddress) -> bool:
    address = value.address
    if isinstance(address, ipaddress.IPv4Address):
        return address in _LOCAL_MULTICAST
    return (address.packed[0], address.packed[1] & 0x0F) == (0xFF, 0x02)


def _is_global_unicast(value: IPAddress) -> bool:
    address = value.address
    return not (
        address.is_unspecified
        or address.is_loopback
        or address.is_multicast
        or address.is_link_local
        or address == _BROADCAST
    )


def _size(prefix: Prefix) -> int:
    """The size by which Kubernetes charges a CIDR: the bytes of its prefix."""
    return -(-prefix.bits // 8)


def _contains_ip_text(budget: Budget, prefix: Prefix, text: str) -> bool:
    budget.spend(-(-len(text) // 10))
    return _holds_ip(budget, prefix, parse_ip(text))


def _holds_ip(budget: Budget, prefix: Prefix, value: IPAddress) -> bool:
    budget.scan(2 * _size(prefix))
    return _contains_ip(prefix, value)


def _contains_cidr_text(budget: Budget, prefix: Prefix, text: str) -> bool:
    budget.spend(-(-len(text) // 10))
    return _holds_cidr(budget, prefix, parse_cidr(text))


def _holds_cidr(budget: Budget, prefix: Prefix, other: Prefix) -> bool:
    budget.scan(2 * _size(prefix))
    budget.spend(-(-_size(prefix) // 10) + 1)
    return _contains_cidr(prefix, other)


def _contains_ip(prefix: Prefix, value: IPAddress) -> bool:
    return value.address.version == prefix.address.version and value.address in prefix.network


def _contains_cidr(prefix: Prefix, other: Prefix) -> bool:
    return prefix.bits <= other.bits and _contains_ip(prefix, IPAddress(other.network.network_address))


OVERLOADS: Final = (
    function("ip", STRING, result=IP, call=_read_ip, budgeted=True),
    function("isIP", STRING, result=BOOL, call=_is_ip, budgeted=True),
    function("ip.isCanonical", STRING, result=BOOL, call=_is_canonical, budgeted=True),
    function("string", IP, result=STRING, call=lambda value: str(value.address)),
    method("family", IP, result=INT, call=lambda value: value.address.version),
    method("isUnspecified", IP, result=BOOL, call=lambda value: value.address.is_unspecified),
    method("isLoopback", IP, result=BOOL, call=lambda value: value.address.is_loopback),
    method("isLinkLocalMulticast", IP, result=BOOL, call=_is_local_multicast),
    method("isLinkLocalUnicast", IP, result=BOOL, call=lambda value: value.address.is_link_local),
    method("isGlobalUnicast", IP, result=BOOL, call=_is_global_unicast),
    function("cidr", STRING, result=CIDR, call=_read_cidr, budgeted=True),
    function("isCIDR", STRING, result=BOOL, call=_is_cidr, budgeted=True),
    function("string", CIDR, result=STRING, call=lambda value: f"{value.address}/{value.bits}"),
    method("containsIP", CIDR, STRING, result=BOOL, call=_contains_ip_text, budgeted=True),
    method("containsIP", CIDR, IP, result=BOOL, call=_holds_ip, budgeted=True),
    method("containsCIDR", CIDR, STRING, result=BOOL, call=_contains_cidr_text, budgeted=True),
    method("containsCIDR", CIDR, CIDR, result=BOOL, call=_holds_cidr, budgeted=True),
    method("ip", CIDR, result=IP, call=lambda prefix: IPAddress(prefix.address)),
    method("prefixLength", CIDR, result=INT, call=lambda prefix: prefix.bits),
    method("masked", CIDR, result=CIDR, call=lambda prefix: Prefix(prefix.network.network_address, prefix.bits)),
)
