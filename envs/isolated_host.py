"""The other side of `envs.isolated`: a warm process that forks host processes, and the host that runs environments."""

import ctypes
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import Any, NoReturn

from envs import catalog
from envs.answers import messages_problem, step_problem, summary_problem
from envs.contract import Env, Step, Task


def stay_warm(control_fd: int) -> None:
    """Replace the host at each byte on the control socket, which carries the new host's socket, and answer it; at its end, kill.

    The kernel closes the control socket however the caller ends, so that no host outlives it, hanging or not.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole terminal; the caller alone decides what it means
    control = socket.socket(fileno=control_fd)
    with suppress(OSError):
        control.sendall(b"r")
    host = 0
    while True:
        try:
            word, fds, _, _ = socket.recv_fds(control, 1, 1)
        except OSError:
            word, fds = b"", []
        if host:
            _kill(host)
        if not word:
            return
        host = os.fork()
        if host == 0:
            control.close()
            _die_with_the_warm_process()
            _host(socket.socket(fileno=fds[0]))
        with suppress(OSError):
            os.setpgid(host, host)
        os.close(fds[0])
        with suppress(OSError):
            control.sendall(b"f")


def _kill(host: int) -> None:
    """Kill the host with everything it started. It is not reaped before, so its number cannot belong to another process."""
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            kill(host, signal.SIGKILL)
    os.waitpid(host, 0)


def _die_with_the_warm_process() -> None:
    """Without this, a hanging host would survive if the warm process alone were killed. Only Linux can promise it."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _host(connection: socket.socket) -> NoReturn:
    """Answer requests until the caller hangs up."""
    status = 1
    try:
        with suppress(OSError):
            os.setpgid(0, 0)
        episodes: dict[int | str, Env] = {}
        with connection.makefile("rb") as requests:
            for line in requests:
                connection.sendall(_reply(episodes, json.loads(line)))
        status = 0
    finally:
        # Not sys.exit: the stack above belongs to the warm process, which must go on in one copy only.
        os._exit(status)


def _reply(episodes: dict[int | str, Env], request: dict[str, Any]) -> bytes:
    episode_id = request["episode"]
    try:
        answer, problem = _answer(episodes, request)
        if problem is None:
            return json.dumps({"answer": answer}).encode() + b"\n"
        reply = {"fault": "garbage", "message": problem}
    except Exception as error:  # noqa: BLE001 - the border of an episode: what an environment raises is data to its caller
        reply = {"fault": "raised", "message": f"{type(error).__name__}: {_text(error)}"}
    episodes.pop(episode_id, None)
    return json.dumps(reply).encode() + b"\n"


def _answer(episodes: dict[int | str, Env], request: dict[str, Any]) -> tuple[Any, str | None]:
    """The plain-data answer to one request, and what is wrong with it."""
    episode_id = request["episode"]
    match request["call"]:
        case "start":
            task = Task(**request["task"])
            episodes[episode_id] = catalog.find(task.env).make(task)
            messages = episodes[episode_id].start()
            problem = messages_problem(messages)
            return (None, problem) if problem else ([{"role": message.role, "content": message.content} for message in messages], None)
        case "step":
            step = episodes[episode_id].step(request["text"])
            problem = step_problem(step)
            return (None, problem) if problem else (_plain(step), None)
        case call:
            assert call == "close", call
            summary = episodes.pop(episode_id).summary()
            problem = summary_problem(summary)
            return (None, problem) if problem else (dict(summary), None)


def _plain(step: Step) -> dict[str, Any]:
    return {"observation": step.observation, "reward": step.reward, "end": step.end, "valid": step.valid}


def _text(error: Exception) -> str:
    """The error's own words; a broken `__str__` must not hide that there was an error."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - as above
        return "(its text cannot be shown)"
