"""``profiler dashboard``: checks what it was given, then runs the app in Streamlit until it is stopped."""

from __future__ import annotations

import errno
import importlib.metadata
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from profiler.errors import UsageError

NEEDS = (("streamlit", (1, 67)), ("plotly", (6, 0)))
APP = Path(__file__).parent / "app.py"
FIRST_PORT, PORTS_TRIED = 8501, 100
LOCAL = ("localhost", "127.0.0.1", "::1")
_GRACE_S = 5.0  # for the server to stop by itself


def launch(
    paths: Sequence[str],
    *,
    port: int | None = None,
    host: str = "localhost",
    browser: bool = True,
    max_upload_mb: int | None = None,
) -> int:
    """Serves the app until it is stopped.

    Args:
        paths: folders of runs, and recordings to open: two are baseline and optimized, more a ladder.
        port: None for the first free one from 8501.
        host: the address to listen on.
        browser: open it, where there is one.
        max_upload_mb: per file; None as the configuration beside the app says.

    Returns:
        The exit code of the server, which ends by itself only where it cannot start.

    Raises:
        UsageError: Streamlit or plotly is missing or too old, or the port is taken.
        UnreadableError: a path does not exist, or holds no profile.
    """
    check_installed()
    from dashboard.sources import Sources

    sources = Sources.of(paths)
    port = _port(host, port)
    command = [
        *(sys.executable, "-m", "streamlit", "run", str(APP)),
        *(f"--server.address={host}", f"--server.port={port}"),
        "--browser.gatherUsageStats=false",
        "--server.fileWatcherType=none",
        *("--logger.hideWelcomeMessage=true", "--logger.level=warning"),
        *([] if browser else ["--server.headless=true"]),
        *([f"--server.maxUploadSize={max_upload_mb}"] if max_upload_mb is not None else []),
        *([] if host in LOCAL else ["--server.allowedHosts=*"]),  # by whatever name it is reached
        *("--", *paths),
    ]
    folders = ", ".join(root.name for root in sources.roots)
    _say(f"dashboard of {folders} at {_url(host, port)} (Ctrl-C stops it)")
    if host not in LOCAL:
        _say(f"warning: whoever reaches {host} port {port} can read the profiles of {folders}: there is no login")
    return serve(command)


def check_installed() -> None:
    """Raises UsageError unless what the dashboard needs is installed and new enough."""
    for package, least in NEEDS:
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found = ""
        if tuple(int(part) for part in re.findall(r"\d+", found)[:2]) < least:
            wanted = ".".join(map(str, least))
            raise UsageError(
                f"the dashboard needs {package} {wanted} or later, and {found or 'none'} is installed",
                remedy="pip install 'profiler[dashboard]'",
            )


def serve(command: Sequence[str]) -> int:
    """Runs a server until it ends; whatever ends this process ends it too.

    Raises:
        KeyboardInterrupt: Ctrl-C; the server has stopped by then.
    """
    with _termination_raises():
        server = subprocess.Popen(command)
        try:
            return server.wait()
        except KeyboardInterrupt:
            with suppress(subprocess.TimeoutExpired):
                server.wait(1.0)  # a terminal's Ctrl-C reaches it too
            raise
        finally:
            stop(server)


def stop(server: subprocess.Popen[bytes]) -> None:
    """Ends a child process: by asking, then by force."""
    if server.poll() is not None:
        return
    server.terminate()
    try:
        server.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


@contextmanager
def _termination_raises() -> Iterator[None]:
    """While it lasts, SIGTERM leaves by way of the ``finally`` blocks, with the exit code that shells expect."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _port(host: str, wanted: int | None) -> int:
    """The wanted port, else the first free one.

    Raises:
        UsageError: it is taken, or the address is none of this machine.
    """
    for port in [wanted] if wanted is not None else range(FIRST_PORT, FIRST_PORT + PORTS_TRIED):
        if _is_free(host, port):
            return port
    if wanted is None:
        raise UsageError(f"no port of {host} from {FIRST_PORT} on is free", remedy="--port N")
    raise UsageError(f"port {wanted} of {host} is taken or not allowed", remedy="leave --port out for a free one")


def _is_free(host: str, port: int) -> bool:
    try:
        addresses = {each[4] for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except OSError as error:
        raise UsageError(f"{host} is no address of this machine: {error.strerror or error}") from error
    here = False
    for address in addresses:
        with socket.socket(_family(str(address[0]))) as probe:
            # As the server does: what is left of a connection that ended does not keep the port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
                here = True
            except OSError as error:
                if error.errno == errno.EADDRNOTAVAIL:  # no IPv6 here, or the address of another machine
                    continue
                return False
    if not here:
        raise UsageError(f"{host} is no address of this machine")
    return True


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _url(host: str, port: int) -> str:
    shown = "localhost" if host in ("", "0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}"


def _say(words: str) -> None:
    print(f"profiler: {words}", file=sys.stderr, flush=True)
