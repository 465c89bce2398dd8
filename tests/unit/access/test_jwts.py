"""JWT: only what a key of ours signed, by the algorithm of that key, for now, and with a role."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from hark.access.jwts import MAX_LENGTH, Key, read_keys, verify
from hark.access.tokens import Identity
from hark.api.operations import Role
from hark.errors import Forbidden, InvalidSetting, Unauthorized
from hark.settings import Auth

SECRET = "0123456789abcdef0123456789abcdef"
HS256 = Auth(jwt_enabled=True, jwt_secret=SECRET)
Private = rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey


@cache
def rsa_key(name: str = "", bits: int = 2048) -> rsa.RSAPrivateKey:
    """An RSA key; another name, another key."""
    del name
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


@cache
def ed_key(name: str = "") -> ed25519.Ed25519PrivateKey:
    """An Ed25519 key; another name, another key."""
    del name
    return ed25519.Ed25519PrivateKey.generate()


def pem(key: Private) -> bytes:
    """The public half, as a PEM file."""
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def jwk(key: Private, **more: str) -> dict[str, Any]:
    """The public half, as an entry of a JWKS."""
    public = key.public_key()
    algorithm: Any = jwt.algorithms.OKPAlgorithm
    if isinstance(public, rsa.RSAPublicKey):
        algorithm = jwt.algorithms.RSAAlgorithm
    elif isinstance(public, ec.EllipticCurvePublicKey):
        algorithm = jwt.algorithms.ECAlgorithm
    entry: dict[str, Any] = json.loads(algorithm.to_jwk(public))
    return entry | more


def claims(**other: Any) -> dict[str, Any]:
    """Those of somebody who may write, for an hour; None leaves one out."""
    given = {"sub": "alice", "role": "read-write", "exp": int(time.time()) + 3600} | other
    return {name: value for name, value in given.items() if value is not None}


def signed(key: Any = SECRET, algorithm: str = "HS256", kid: str | None = None, **other: Any) -> str:
    """A JWT."""
    return jwt.encode(claims(**other), key, algorithm=algorithm, headers={"kid": kid} if kid else None)


def accepted(text: str, auth: Auth = HS256) -> Identity:
    """Who comes with a JWT."""
    return verify(text, read_keys(auth), auth).identity


def refused(text: str, auth: Auth = HS256) -> str:
    """Why a JWT is not accepted; never with a word of it."""
    with pytest.raises(Unauthorized) as error:
        verify(text, read_keys(auth), auth)
    assert not any(len(part) > 8 and part in error.value.text for part in text.split("."))
    return error.value.text


@pytest.fixture
def keys(tmp_path: Path) -> Callable[..., Auth]:
    """Settings with files of these contents."""

    def make(*contents: bytes | dict[str, Any], **more: Any) -> Auth:
        names = []
        for number, content in enumerate(contents):
            path = tmp_path / f"key{number}"
            path.write_bytes(content if isinstance(content, bytes) else msgspec.json.encode(content))
            names.append(str(path))
        return Auth(jwt_enabled=True, jwt_public_keys=tuple(names), **more)

    return make


# Who it is ---------------------------------------------------------------------------------------------------


def test_a_jwt_says_who_it_is_what_they_may_do_and_until_when() -> None:
    text = signed(queues=["orders.*"], exp=4_000_000_000)
    verified = verify(text, read_keys(HS256), HS256)
    assert verified.identity == Identity("alice", Role.READ_WRITE, ("orders.*",))
    assert verified.until == 4_000_000_030_000_000


def test_without_a_claim_about_queues_all_may_be_used() -> None:
    assert not accepted(signed()).restricted
    assert not accepted(signed(queues=[])).may_use("orders")


@pytest.mark.parametrize(
    ("role", "roles", "expected"),
    [
        ("admin", None, Role.ADMIN),
        (None, ["read-only"], Role.READ_ONLY),
        ("read-only", ["read-write", "other"], Role.READ_WRITE),
        (None, ["other", "admin", "read-only", 7], Role.ADMIN),
    ],
    ids=["role", "roles", "both", "highest"],
)
def test_the_highest_role_that_we_know_counts(role: str | None, roles: list[Any] | None, expected: Role) -> None:
    assert accepted(signed(role=role, roles=roles)).role == expected


@pytest.mark.parametrize(
    ("role", "roles"),
    [(None, None), ("root", None), (None, []), (None, "admin"), (["admin"], None), (None, [["admin"]])],
    ids=["none", "unknown", "no-roles", "no-list", "no-text", "nested"],
)
def test_a_good_jwt_without_a_role_of_ours_may_do_nothing(role: object, roles: object) -> None:
    with pytest.raises(Forbidden, match="no valid role"):
        verify(signed(role=role, roles=roles), read_keys(HS256), HS256)


@pytest.mark.parametrize(
    "wrong",
    [{"sub": ""}, {"sub": "a\nb"}, {"sub": "a" * 256}, {"queues": "orders"}, {"queues": [1]}, {"queues": {}}],
    ids=lambda wrong: repr(wrong)[:24],
)
def test_claims_that_can_not_be_used_are_refused(wrong: dict[str, Any]) -> None:
    assert "a claim of the JWT is invalid" in refused(signed(**wrong))


@pytest.mark.parametrize("claim", ["exp", "sub"])
def test_a_jwt_must_end_and_be_someones(claim: str) -> None:
    assert f"no claim `{claim}`" in refused(jwt.encode(claims(**{claim: None}), SECRET))


# Times, issuer, audience -------------------------------------------------------------------------------------


def test_an_expired_jwt_is_refused_after_the_leeway() -> None:
    assert accepted(signed(exp=int(time.time()) - 10)).subject == "alice"
    assert "expired" in refused(signed(exp=int(time.time()) - 40))
    strict = msgspec.structs.replace(HS256, jwt_leeway_seconds=0)
    assert "expired" in refused(signed(exp=int(time.time()) - 10), strict)


@pytest.mark.parametrize("claim", ["nbf", "iat"])
def test_a_jwt_from_the_future_is_refused_beyond_the_leeway(claim: str) -> None:
    assert accepted(jwt.encode(claims(**{claim: int(time.time()) + 10}), SECRET)).subject == "alice"
    assert "not valid yet" in refused(jwt.encode(claims(**{claim: int(time.time()) + 3000}), SECRET))


@pytest.mark.parametrize("exp", [float("inf"), float("nan"), "soon", [1]], ids=repr)
def test_times_that_are_none_are_refused(exp: object) -> None:
    refused(signed(exp=exp))


@pytest.mark.parametrize(("claim", "setting"), [("aud", "jwt_audience"), ("iss", "jwt_issuer")])
def test_audience_and_issuer_must_be_ours_if_we_have_them(claim: str, setting: str) -> None:
    ours = msgspec.structs.replace(HS256, **{setting: "https://ours"})
    assert accepted(signed(**{claim: "https://ours"}), ours).subject == "alice"
    for other in ("https://other", "https://our", "https", "https://ours/"):
        assert f"`{claim}`" in refused(signed(**{claim: other}), ours)
    assert f"`{claim}`" in refused(signed(), ours)
    assert accepted(signed(**{claim: "https://other"})).subject == "alice"


def test_one_of_several_audiences_is_enough() -> None:
    ours = msgspec.structs.replace(HS256, jwt_audience="hark")
    assert accepted(signed(aud=["other", "hark"]), ours).subject == "alice"


# Keys and algorithms -----------------------------------------------------------------------------------------


def test_rsa_and_ed25519_keys_verify_what_their_private_halves_signed_and_nothing_else(
    keys: Callable[..., Auth],
) -> None:
    auth = keys(pem(rsa_key()), pem(ed_key()))
    assert accepted(signed(rsa_key(), "RS256"), auth).subject == "alice"
    assert accepted(signed(ed_key(), "EdDSA"), auth).subject == "alice"
    assert "signature" in refused(signed(rsa_key("other"), "RS256"), auth)
    assert "signature" in refused(signed(ed_key("other"), "EdDSA"), auth)
    assert "signature" in refused(signed(SECRET[::-1]))


def test_a_changed_claim_is_refused() -> None:
    header, _, signature = signed().split(".")
    payload = base64.urlsafe_b64encode(json.dumps(claims(role="admin")).encode()).rstrip(b"=").decode()
    assert "signature" in refused(f"{header}.{payload}.{signature}")


def test_a_public_key_is_no_secret_to_sign_with(keys: Callable[..., Auth]) -> None:
    # The algorithm confusion: an attacker knows the public key and signs with it by HS256.
    public = pem(rsa_key())
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').rstrip(b"=")
    body = base64.urlsafe_b64encode(json.dumps(claims(role="admin")).encode()).rstrip(b"=")
    signature = base64.urlsafe_b64encode(hmac.digest(public, head + b"." + body, hashlib.sha256)).rstrip(b"=")
    forged = b".".join((head, body, signature)).decode()
    assert "no key of this server matches" in refused(forged, keys(public))
    assert "signature" in refused(forged, keys(public, jwt_secret=SECRET))


@pytest.mark.parametrize("algorithm", ["none", "None", "HS384", "HS512", "RS512", ""])
def test_no_other_algorithm_is_accepted(algorithm: str) -> None:
    head = base64.urlsafe_b64encode(json.dumps({"alg": algorithm, "typ": "JWT"}).encode()).rstrip(b"=").decode()
    body = signed().split(".")[1]
    assert "no key of this server matches" in refused(f"{head}.{body}.")
    assert "no key of this server matches" in refused(f"{head}.{body}.{signed().split('.')[2]}")


def test_an_rsa_key_is_for_rs256_alone_and_extensions_are_refused(keys: Callable[..., Auth]) -> None:
    assert "no key of this server matches" in refused(signed(rsa_key(), "PS256"), keys(pem(rsa_key())))
    refused(jwt.encode(claims(), SECRET, algorithm="HS256", headers={"crit": ["more"], "more": 1}))


@pytest.mark.parametrize(
    "text", ["", "a", "a.b.c", "é.é.é", "..", "e30.e30.e30", "x" * (MAX_LENGTH + 1), "[" * 4000 + ".a.b"], ids=range(8)
)
def test_what_is_no_jwt_is_refused(text: str) -> None:
    with pytest.raises(Unauthorized):
        verify(text, read_keys(HS256), HS256)


def test_a_jwks_is_searched_by_the_name_of_the_key(keys: Callable[..., Auth]) -> None:
    auth = keys({"keys": [jwk(rsa_key("1"), kid="1"), jwk(rsa_key("2"), kid="2"), jwk(ed_key(), kid="3")]})
    assert accepted(signed(rsa_key("1"), "RS256", "1"), auth).subject == "alice"
    assert accepted(signed(rsa_key("2"), "RS256", "2"), auth).subject == "alice"
    assert accepted(signed(ed_key(), "EdDSA", "3"), auth).subject == "alice"
    assert accepted(signed(rsa_key("2"), "RS256"), auth).subject == "alice"
    assert "signature" in refused(signed(rsa_key("2"), "RS256", "1"), auth)
    assert "no key of this server matches" in refused(signed(rsa_key("1"), "RS256", "4"), auth)
    assert "no key of this server matches" in refused(signed(rsa_key("1"), "RS256", "3"), auth)


def test_keys_of_a_jwks_for_other_purposes_are_left_out(keys: Callable[..., Auth]) -> None:
    other = ec.generate_private_key(ec.SECP256R1())
    listed = [jwk(other, kid="ec"), jwk(rsa_key("1"), kid="e", use="enc"), jwk(rsa_key("2"), kid="p", alg="PS256")]
    auth = keys({"keys": [*listed, jwk(rsa_key(), kid="ours", use="sig", alg="RS256")]})
    assert [key.kid for key in read_keys(auth)] == ["ours"]
    with pytest.raises(InvalidSetting, match="has no key for RS256"):
        read_keys(keys({"keys": listed}))


def test_a_secret_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    file.chmod(0o600)
    assert accepted(signed(), Auth(jwt_enabled=True, jwt_secret_file=str(file))).subject == "alice"


def _unusable() -> dict[str, bytes | dict[str, Any]]:
    private = rsa_key().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        "is a private key; use the public key": private,
        "expected a public key in PEM format or a JWKS": b"hello",
        "not a JWKS": {"key": []},
        "has a secret or private key": {"keys": [{"kty": "oct", "k": "c2VjcmV0"}]},
        "expected public keys only": {"keys": [json.loads(jwt.algorithms.OKPAlgorithm.to_jwk(ed_key()))]},
        "cannot read the key with the kid": {"keys": [{"kty": "RSA", "kid": "x"}]},
        "key of another type": pem(ec.generate_private_key(ec.SECP256R1())),
        "1024 bits": pem(rsa_key("small", 1024)),
    }


def test_public_keys_that_can_not_be_used_are_refused_by_name(keys: Callable[..., Auth]) -> None:
    for text, content in _unusable().items():
        with pytest.raises(InvalidSetting, match=text) as refusal:
            read_keys(keys(content))
        assert "key0" in refusal.value.text


@pytest.mark.parametrize(
    ("auth", "text"),
    [
        (Auth(jwt_enabled=True, jwt_public_keys=("nothing",)), "cannot read nothing"),
        (Auth(jwt_enabled=True, jwt_secret_file="nothing"), "cannot read nothing"),
        (Auth(jwt_enabled=True, jwt_secret="x" * 31), "31 bytes, expected at least 32"),
        (Auth(jwt_enabled=True, jwt_secret="-----BEGIN PUBLIC KEY-----\nMCowBQ"), "is a PEM file"),
    ],
    ids=["no-key", "no-secret", "short", "public"],
)
def test_secrets_and_files_that_can_not_be_used_are_refused(auth: Auth, text: str) -> None:
    with pytest.raises(InvalidSetting, match=text):
        read_keys(auth)


def test_keys_hide_what_they_are() -> None:
    assert SECRET not in repr(read_keys(HS256))
    assert SECRET not in repr(HS256)
    assert repr(Key("HS256", b"x")) == "Key(algorithm='HS256', kid=None)"
