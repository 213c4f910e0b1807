"""Environments in a process that can be killed: no hang, exit or garbage of an environment reaches the caller.

    caller --control socket--> warm process --fork--> host process: the episodes' environments
       \\------------ one JSON line a request, one a reply ----------/

The warm process (`envs.isolated_host`) has imported the catalog and does nothing else, so that a killed host is replaced
by a fork, in milliseconds. It is a fresh interpreter without threads: forking it is safe, forking the caller (Ray, torch,
vLLM threads) would not be. It is ours rather than `multiprocessing`'s fork server because that one imports the caller's
main module again in every child (a Ray worker's main module imports Ray), and because its children outlive a caller that
is killed while they hang.

Replies are JSON, never pickles: loading a pickle would run code of the environment's choosing in the caller.
"""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from types import TracebackType
from typing import Any, Self

from envs.answers import messages_problem, step_problem, summary_problem
from envs.contract import End, EnvFault, Message, Step, Task
from envs.errors import InputError

MAX_REPLY_BYTES = 64 * 2**20
WARM_UP_S = 120.0
_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[2]); from envs.isolated_host import stay_warm; stay_warm(int(sys.argv[1]))"


class FaultKind(StrEnum):
    """What went wrong: `EnvFault.kind`.

    `raised`: the environment raised; `timed_out`: no answer within the deadline; `died`: its process ended; `garbage`: the
    answer breaks the contract; `lost`: another episode took the shared process down.
    """

    RAISED = "raised"
    TIMED_OUT = "timed_out"
    DIED = "died"
    GARBAGE = "garbage"
    LOST = "lost"


class EnvProcess:
    """Hosts any number of live episodes, of any environments, in one process.

    Every call answers within `deadline_s` seconds or the process is killed with SIGKILL, replaced, and `EnvFault` is raised;
    the other live episodes of the process are then `lost`. An episode that faulted is closed. Calls from several threads
    take turns, so a slow step delays the other episodes of the same process: more processes run more in parallel.

    Example: `with EnvProcess(deadline_s=5) as host: host.start(0, task); host.step(0, "guess(8)"); host.close(0)`.
    Raises `InputError` at a `step` of an episode that is not live, and at a `start` of one that is.
    """

    def __init__(self, *, deadline_s: float = 30.0) -> None:
        if deadline_s <= 0:
            raise InputError(f"deadline_s is {deadline_s}; expected seconds > 0, within which an environment must answer")
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._live: set[int | str] = set()
        self._lost: dict[int | str, str] = {}
        self._host: socket.socket | None = None
        self._received = b""
        self._warm, self._control = _warm_process()
        self._fork_host()

    def start(self, episode_id: int | str, task: Task, *, deadline_s: float | None = None) -> tuple[Message, ...]:
        """Build the task's environment (`catalog.find(task.env).make(task)`) in the host and start it."""
        with self._lock:
            if episode_id in self._live:
                raise InputError(f"episode {episode_id!r} is live already; close it first or use another id")
            self._lost.pop(episode_id, None)
            answer = self._call({"call": "start", "episode": episode_id, "task": task.to_json()}, deadline_s)
            messages: tuple[Message, ...] = _decode(lambda: tuple(Message(**message) for message in answer))
            self._accept(episode_id, messages_problem(messages))
            self._live.add(episode_id)
            return messages

    def step(self, episode_id: int | str, text: str, *, deadline_s: float | None = None) -> Step:
        """`Env.step` of a live episode. The episode stays live after its end, for `close` to fetch the summary."""
        with self._lock:
            self._check_live(episode_id)
            answer = self._call({"call": "step", "episode": episode_id, "text": text}, deadline_s)
            step: Step = _decode(lambda: Step(**{**answer, "end": None if answer["end"] is None else End(answer["end"])}))
            self._accept(episode_id, step_problem(step))
            return step

    def close(self, episode_id: int | str, *, deadline_s: float | None = None) -> Mapping[str, float]:
        """`Env.summary` of a live episode, which is forgotten; empty if a fault closed it already, so that closing twice is safe."""
        with self._lock:
            if episode_id not in self._live and episode_id not in self._lost:
                return {}
            self._check_live(episode_id)
            answer = self._call({"call": "close", "episode": episode_id}, deadline_s)
            self._accept(episode_id, summary_problem(answer))
            self._live.discard(episode_id)
            return dict(answer)

    def shutdown(self) -> None:
        """End both processes, whatever the environments are doing. Nothing may be called after it."""
        with self._lock:
            if self._host is not None:
                self._host.close()
            self._control.close()
            try:
                self._warm.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._warm.kill()
                self._warm.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.shutdown()

    def _check_live(self, episode_id: int | str) -> None:
        if episode_id in self._lost:
            raise EnvFault(FaultKind.LOST, self._lost.pop(episode_id))
        if episode_id not in self._live:
            raise InputError(f"episode {episode_id!r} is not live; start it first (a fault closes an episode)")

    def _call(self, request: dict[str, Any], deadline_s: float | None) -> Any:
        """The answer to one request; on a fault the episode is closed, and the host replaced unless it said so itself."""
        episode_id = request["episode"]
        allowed_s = self._deadline_s if deadline_s is None else deadline_s
        call = request["call"]
        line = json.dumps(request).encode() + b"\n"
        try:
            reply = self._exchange(line, time.monotonic() + allowed_s)
        except TimeoutError:
            raise self._replace_host(episode_id, FaultKind.TIMED_OUT, f"{call} gave no answer in {allowed_s:g} s") from None
        except (OSError, EOFError):
            raise self._replace_host(episode_id, FaultKind.DIED, f"the process ended during {call}") from None
        except (ValueError, RecursionError) as error:
            raise self._replace_host(episode_id, FaultKind.GARBAGE, f"the reply to {call} cannot be read: {error}") from None
        if "fault" in reply:
            self._live.discard(episode_id)
            raise EnvFault(FaultKind(reply["fault"]), str(reply["message"]))
        return reply["answer"]

    def _exchange(self, request: bytes, deadline: float) -> dict[str, Any]:
        """Send one line and wait for one line. Both sides of the wait are bounded: a hung host does not read either."""
        assert self._host is not None, "the host has been shut down"
        self._host.settimeout(max(deadline - time.monotonic(), 1e-3))
        self._host.sendall(request)
        while b"\n" not in self._received:
            self._host.settimeout(max(deadline - time.monotonic(), 1e-3))
            chunk = self._host.recv(2**16)
            if not chunk:
                raise EOFError
            self._received += chunk
            if len(self._received) > MAX_REPLY_BYTES:
                raise ValueError(f"longer than {MAX_REPLY_BYTES} bytes")
        line, _, self._received = self._received.partition(b"\n")
        reply = json.loads(line)
        if not isinstance(reply, dict) or not ({"answer"} == set(reply) or {"fault", "message"} == set(reply)) or self._received:
            raise ValueError("not one reply of the host")
        if "fault" in reply:
            FaultKind(reply["fault"])
        return reply

    def _accept(self, episode_id: int | str, problem: str | None) -> None:
        """Believe nothing that the other side checked: it shares its process with the environment."""
        if problem:
            raise self._replace_host(episode_id, FaultKind.GARBAGE, problem)

    def _replace_host(self, episode_id: int | str, kind: FaultKind, message: str) -> EnvFault:
        self._live.discard(episode_id)
        for other in self._live:
            self._lost[other] = f"its process was replaced because of episode {episode_id!r} ({kind}: {message})"
        self._live.clear()
        self._fork_host()
        return EnvFault(kind, message)

    def _fork_host(self) -> None:
        """Have the warm process kill the host and fork another. If the warm process itself was killed, begin from the start."""
        if self._host is not None:
            self._host.close()
        self._received = b""
        ours, theirs = socket.socketpair()
        with theirs:
            if not self._hand_over(theirs):
                self._control.close()
                self._warm.kill()
                self._warm.wait()
                self._warm, self._control = _warm_process()
                if not self._hand_over(theirs):
                    raise RuntimeError(f"the process that hosts environments ended twice, with status {self._warm.wait()}")
        self._host = ours

    def _hand_over(self, theirs: socket.socket) -> bool:
        """Wait until the warm process has killed the old host and forked the new one; False if the warm process is gone."""
        try:
            socket.send_fds(self._control, [b"f"], [theirs.fileno()])
            return self._control.recv(1) == b"f"
        except OSError:
            return False


def _decode(build: Callable[[], Any]) -> Any:
    """Build the typed answer; what cannot be built becomes None, which the answer's check names as garbage."""
    try:
        return build()
    except (TypeError, ValueError, KeyError):
        return None


def _warm_process() -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-c", _BOOT, str(theirs.fileno()), json.dumps(sys.path)]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    ours.settimeout(WARM_UP_S)
    try:
        ready = ours.recv(1)
    except TimeoutError:
        process.kill()
        ready = b""
    if not ready:
        raise RuntimeError(f"the process that hosts environments ended with status {process.wait()} while it started")
    return process, ours
