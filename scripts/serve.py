"""`make serve`: the site on this machine, rebuilt at every saved file."""

import argparse
import errno
import os
import socket
import sys

from scripts import ROOT

HOST = "127.0.0.1"
WATCHED = ("snippets", "scripts", "theme")


def port_problem(port: int) -> str:
    """Why a port can't be listened on, and what to do; "" if it can."""
    if not 0 < port < 65536:
        return f"{port} is no port\n    fix: make serve PORT=8001"
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                why = "is in use, perhaps by another make serve"
            else:
                why = f"can't be opened: {error.strerror}"
            other = port + 1 if 1024 <= port < 65535 else 8001
            return f"Port {port} {why}\n    fix: make serve PORT={other}"
    return ""


def command(port: int) -> list[str]:
    """The command that serves; docs/ and mkdocs.yml are watched anyway."""
    words = [sys.executable, "-m", "mkdocs", "serve"]
    words += ["--dev-addr", f"{HOST}:{port}"]
    for folder in WATCHED:
        words += ["--watch", folder]
    return words


def main() -> int:
    """Check the port, then become mkdocs; return 1 if the port is taken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    port = parser.parse_args().port
    problem = port_problem(port)
    if problem:
        print(problem, file=sys.stderr)
        return 1
    print(f"http://{HOST}:{port}/ after the first build; Ctrl-C ends it")
    sys.stdout.flush()
    os.chdir(ROOT)
    os.execv(sys.executable, command(port))


if __name__ == "__main__":
    sys.exit(main())
