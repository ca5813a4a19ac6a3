"""Ed25519 as in RFC 8032, in plain integers: slow, short, and independent of every library under test."""

from __future__ import annotations

from hashlib import sha512

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
Point = tuple[int, int]
IDENTITY: Point = (0, 1)


def add(a: Point, b: Point) -> Point:
    cross = D * a[0] * b[0] * a[1] * b[1] % P
    x = (a[0] * b[1] + a[1] * b[0]) * pow(1 + cross, -1, P) % P
    y = (a[1] * b[1] + a[0] * b[0]) * pow(1 - cross, -1, P) % P
    return x, y


def multiply(scalar: int, point: Point) -> Point:
    result = IDENTITY
    while scalar:
        if scalar & 1:
            result = add(result, point)
        point = add(point, point)
        scalar >>= 1
    return result


def encode(point: Point) -> bytes:
    return spell(point[1], point[0] & 1)


def spell(y: int, sign: int) -> bytes:
    """The 32 bytes of `y`, which may be P or more, and a sign bit."""
    return (y | sign << 255).to_bytes(32, "little")


def point_at(y: int) -> Point | None:
    """The point with this y and an even x, if the curve has one."""
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    if (x * x - square) % P:
        return None
    return (P - x if x & 1 else x), y


def torsion() -> list[Point]:
    """The eight points whose order divides 8, made from the first point whose multiple by L has order 8."""
    for y in range(2, 100):
        point = point_at(y)
        candidate = multiply(L, point) if point else IDENTITY
        if multiply(4, candidate) != IDENTITY:
            return [multiply(index, candidate) for index in range(8)]
    raise AssertionError("no point of order 8 found")


def small_order_spellings() -> set[bytes]:
    """Every 32 bytes that a lenient decoder could read as one of the eight: both signs, y and y + P."""
    ys = {y for _, y in torsion()}
    return {spell(y + extra, sign) for y in ys for extra in (0, P) for sign in (0, 1) if y + extra < 2**255}


_base = point_at(4 * pow(5, -1, P) % P)
assert _base is not None
BASE: Point = _base


def challenge(r: bytes, public_key: bytes, message: bytes) -> int:
    return int.from_bytes(sha512(r + public_key + message).digest(), "little") % L


def secret_scalar(seed: bytes) -> int:
    """The clamped scalar of RFC 8032 5.1.5."""
    return int.from_bytes(sha512(seed).digest()[:32], "little") & ((1 << 254) - 8) | 1 << 254


def sign_as(public_key: bytes, secret: int, nonce: int, message: bytes, r: bytes | None = None) -> bytes:
    """A signature under any spelling of the key and of R = nonce × B: what a forger may write."""
    r = encode(multiply(nonce, BASE)) if r is None else r
    return r + ((nonce + challenge(r, public_key, message) * secret) % L).to_bytes(32, "little")
