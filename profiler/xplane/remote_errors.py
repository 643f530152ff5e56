"""What goes wrong between here and a store: tried again where that helps, else said in one line without secrets.

The libraries below fsspec each have errors of their own, which are told apart by what they say (an HTTP status, an
errno, the name of their class), so that none of them is imported. Their texts are never shown: they hold whole URLs.
"""

from __future__ import annotations

import errno
import random
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from profiler.errors import UnreadableError
from profiler.xplane.urls import shown

Result = TypeVar("Result")

ATTEMPTS = 5
FIRST_WAIT_S = 0.5  # doubles; with some chance, so that many readers do not come back at once

TRANSIENT_STATUS = (408, 409, 425, 429, 500, 502, 503, 504)
_TRANSIENT_ERRNO = (errno.EBUSY, errno.EIO, getattr(errno, "EREMOTEIO", -1), errno.EAGAIN, errno.EPIPE)
_CREDENTIALS = {
    "s3": "sign in with aws configure, AWS_PROFILE or AWS_ACCESS_KEY_ID; public: FSSPEC_S3_ANON=true",
    "gs": "gcloud auth application-default login, GOOGLE_APPLICATION_CREDENTIALS; public: FSSPEC_GCS_TOKEN=anon",
    "az": "az login, AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME with a key or token",
    "hf": "hf auth login, or HF_TOKEN",
    "http": "ask for access; a signed URL may have expired",
}
_SAME = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az", "adl": "az", "https": "http"}
_IN_REMOTE = ("s3", "s3a", "gs", "gcs", "http", "https")


class Short(Exception):
    """A store sent fewer or more bytes than were asked for."""


def attempt(call: Callable[..., Result], *args: Any, url: str, tries: int = ATTEMPTS, **options: Any) -> Result:
    """What a call to a store gives, tried again after failures that may pass.

    Args:
        call, args, options: the call.
        url: what it is about, for the message.
        tries: how often at most.

    Raises:
        UnreadableError: it failed for good.
    """
    number = 1
    while True:
        try:
            return call(*args, **options)
        except Exception as error:
            passes = _told(error)[1]
            if not passes or number == tries:
                raise explained(error, url, number if passes else 1) from _cause(error, url)
        time.sleep(FIRST_WAIT_S * 2 ** (number - 1) * random.uniform(0.5, 1.0))
        number += 1


def explained(error: Exception, url: str, tries: int = 1) -> UnreadableError:
    """A failure in one line: the URL without secrets, what is wrong, and what helps."""
    scheme = url.partition("://")[0].lower()
    what, passes = _told(error)
    remedy = None
    if what in (_DENIED, _UNKNOWN):
        remedy = _CREDENTIALS.get(_SAME.get(scheme, scheme))
    elif isinstance(error, ImportError):
        what = f"{scheme}:// needs a package that is not installed"
        remedy = "pip install 'profiler[remote]'" if scheme in _IN_REMOTE else _needed(scheme)
    elif isinstance(error, ValueError) and "Protocol not known" in str(error):
        what, remedy = f"{scheme}:// is no scheme that fsspec knows", "such as gs://, s3://, az://, hf://, https://"
    elif what == _NAME:
        remedy = "check the URL, and the network"
    if passes and tries > 1:
        what += f", {tries} times"
    return UnreadableError(what, file=shown(url), remedy=remedy)


MISSING = "no such file or folder"
_DENIED = "may not be read: no permission, or no such object"
_UNKNOWN = "may not be read: no credentials, or ones that do not hold"
_NAME = "the name of the server cannot be resolved"
_TIMEOUT = "the server does not answer in time"
_CONNECTION = "the connection fails"


def _told(error: BaseException) -> tuple[str, bool]:
    """(what is wrong, whether it may pass), by the innermost error that says something."""
    for each in reversed(list(_chain(error))):
        said = _one(each)
        if said:
            return said
    return f"cannot be read ({type(error).__name__})", False


def _one(error: BaseException) -> tuple[str, bool] | None:
    names = {kind.__name__ for kind in type(error).__mro__}
    if "PayloadEncodingError" in names:  # an answer that ends too early; aiohttp gives it a status of its own
        return _CONNECTION, True
    status = _status(error)
    if status == 401 or names & {"NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError"}:
        return _UNKNOWN, False
    if status == 403 or isinstance(error, PermissionError):
        return _DENIED, False
    if status in (404, 410) or isinstance(error, FileNotFoundError):
        return MISSING, False
    if status:
        return f"the server answers {status}", status in TRANSIENT_STATUS
    if isinstance(error, socket.gaierror) or "ClientConnectorDNSError" in names:
        return _NAME, getattr(error, "errno", None) == socket.EAI_AGAIN
    if isinstance(error, ssl.SSLCertVerificationError):
        return "the certificate of the server is not trusted", False
    if isinstance(error, TimeoutError) or any("Timeout" in name for name in names):
        return _TIMEOUT, True
    if isinstance(error, Short):
        return "sends fewer bytes than it says", True
    if isinstance(error, ConnectionError) or names & {
        "ClientConnectionError",
        "ClientPayloadError",
        "HTTPClientError",
        "EndpointConnectionError",
        "IncompleteRead",
    }:
        return _CONNECTION, True
    if isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNO:
        return _CONNECTION, True
    return None


def _status(error: BaseException) -> int | None:
    """The HTTP status that an error of aiohttp, gcsfs, azure or botocore carries."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        metadata = response.get("ResponseMetadata")
        candidates: Iterator[Any] = iter([metadata.get("HTTPStatusCode")] if isinstance(metadata, dict) else [])
    else:
        names = ("status", "status_code", "code")
        candidates = (getattr(each, name, None) for each in (error, response) for name in names)
    return next((each for each in candidates if isinstance(each, int) and 400 <= each < 600), None)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what led to it, outermost first."""
    each: BaseException | None = error
    seen: list[BaseException] = []
    while each is not None and each not in seen:
        seen.append(each)
        yield each
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def _cause(error: Exception, url: str) -> Exception | None:
    """What a traceback may show: nothing of a store's errors where the URL holds a secret."""
    return error if shown(url) == url else None


def _needed(scheme: str) -> str | None:
    from fsspec.registry import known_implementations

    needed = known_implementations.get(scheme, {}).get("err")
    return str(needed) if needed else None
