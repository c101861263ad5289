"""One trial's machine: the tree, limits and network that all its jails share, from start to removal."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from harness.jail import relay
from harness.jail.check import check_jail
from harness.jail.command import (
    Bind,
    Jail,
    JailCommand,
    bwrap_options,
    host_directories,
    launch_argv,
    options_file,
    stage_hidden,
)
from harness.jail.forwarder import Forward, Forwarder, allowed, hosts_file
from harness.jail.image import ImageRecipe, add_mount_points, build_skeleton, hand_over, require_untouched
from harness.jail.limits import ControlGroups, Limit
from harness.jail.process import CappedText, Sink, run_jail
from harness.jail.python import BUNDLED_BIN, BUNDLED_PREFIX, PythonChoice, choose_python
from harness.jail.space import TrialSpace
from harness.jail.tools import DEFAULT_HOST_UID, HOST_PATH, JailUnavailable, find_tools

#: PATH of jailed commands; the bundled Python, if there is one, is found last.
JAIL_PATH = f"{HOST_PATH}:{BUNDLED_BIN}"

_RELAY = "/jail/relay.py"
_COMPLAINT_BYTES = 4096


@dataclass(frozen=True)
class MachineSettings:
    """How to build a machine; the environment's keyword arguments and the task's resources, already checked."""

    forwards: tuple[Forward, ...] = ()
    mounts: tuple[Bind, ...] = ()
    host_uid: int | None = DEFAULT_HOST_UID
    state_root: Path | None = None
    python: PythonChoice = "auto"
    cpus: float | None = None
    memory_bytes: int | None = None
    memory_required: bool = False
    max_processes: int = 2048


@dataclass(frozen=True)
class Network:
    """What one command may reach: everything the host can, or only these hosts (through their forwards)."""

    shared: bool = False
    hosts: frozenset[str] = frozenset()


class JailMachine:
    """Runs commands in fresh jails over one persistent tree.  Make it with `open`."""

    def __init__(self, settings: MachineSettings, logger: logging.Logger) -> None:
        self.recipe = ImageRecipe()
        self._settings = settings
        self._logger = logger
        self._python = choose_python(settings.python)
        self._groups = ControlGroups()
        self._space: TrialSpace | None = None
        self._jail: Jail | None = None
        self._forwarder: Forwarder | None = None
        self._hosts_files: dict[Network, Bind] = {}
        self._running: set[asyncio.Task[int]] = set()

    @classmethod
    async def open(
        cls, settings: MachineSettings, fill: Callable[[Path], ImageRecipe], logger: logging.Logger
    ) -> JailMachine:
        """Build a machine and prove that it runs Python.

        Args:
            settings: how to build it.
            fill: puts the task's files into the tree (given the host path of `/`) before the jailed account owns it.
            logger: for warnings about limits that cannot be enforced and endpoints that do not answer.

        Raises:
            JailUnavailable: this machine cannot build a jail that holds, or nothing starts in it.
        """
        machine = cls(settings, logger)
        building = asyncio.ensure_future(asyncio.to_thread(machine._build, fill))
        try:
            await asyncio.shield(building)
            await machine._start()
        except BaseException:
            # A thread cannot be cancelled, and what it still makes has to be removed as well.
            await asyncio.shield(machine._close_after(building))
            raise
        return machine

    @property
    def path(self) -> Path | None:
        """The host directory that holds the machine; None once it is closed."""
        return self._space.path if self._space is not None else None

    # --- building -----------------------------------------------------------------------------------------------------

    def _build(self, fill: Callable[[Path], ImageRecipe]) -> None:
        settings = self._settings
        tools = find_tools(settings.host_uid)
        check_jail(tools, settings.state_root)
        self._space = space = TrialSpace.create(settings.state_root, tools.host_uid)
        self._forwarder = Forwarder(settings.forwards, space.run, self._logger)
        build_skeleton(space.root, self._python)
        shutil.copyfile(relay.__file__, space.run / "relay.py")
        self.recipe = fill(space.root)
        binds = list(settings.mounts)
        if self._python.prefix is not None:
            binds.append(Bind(self._python.prefix, BUNDLED_PREFIX))
        side_files = [Bind(space.run / "relay.py", _RELAY), *map(self._socket_bind, settings.forwards)]
        add_mount_points(space.root, [(bind.source, bind.target) for bind in (*binds, *side_files)])
        hand_over(space.root, tools.host_uid)
        for bind in binds:
            _make_usable(bind, tools.host_uid)
        self._groups = self._make_groups()
        self._jail = Jail(
            tools=tools,
            root=space.root,
            binds=tuple(binds),
            staged=stage_hidden(binds, tools.host_uid, space.run / "staged"),
            cpus=_choose_cpus(settings.cpus),
            cgroups=self._groups.directories,
        )

    def _make_groups(self) -> ControlGroups:
        settings = self._settings
        limits = [Limit("pids", settings.max_processes)]
        if settings.memory_bytes is not None:
            limits.append(Limit("memory", settings.memory_bytes))
        groups = ControlGroups.create(limits)
        for controller, reason in groups.unmet.items():
            if controller == "memory" and settings.memory_required:
                groups.remove()
                raise JailUnavailable(f"the memory limit of {settings.memory_bytes} bytes cannot be enforced: {reason}")
            self._logger.warning("no %s limit is enforced for this trial: %s", controller, reason)
        return groups

    async def _start(self) -> None:
        assert self._forwarder is not None
        assert self._jail is not None
        await self._forwarder.start(self._jail.tools.host_uid)
        complaint = CappedText(_COMPLAINT_BYTES)
        argv = (self._python.executable, "-I", "-c", "pass")
        status = await self.run(argv, env={}, stdout=CappedText(0), stderr=complaint)
        if status != 0:
            raise JailUnavailable(
                f"{argv[0]} does not start in the jail (status {status}): {complaint.text().strip() or 'no message'}; "
                "if Python is what is missing: apt-get install -y python3"
            )

    # --- running ------------------------------------------------------------------------------------------------------

    async def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        stdout: Sink,
        stderr: Sink,
        workdir: str = "/",
        uid: int = 0,
        network: Network | None = None,
        stdin: IO[bytes] | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Run one command in a jail of its own and return its exit status (128 + signal when a signal ended it).

        Raises:
            TimeoutError: it ran too long; like on every other way out, all its processes are dead.
            RuntimeError: the machine is closed, or was closed meanwhile.
        """
        if self._jail is None or self._space is None:
            raise RuntimeError("the local environment is not running")
        jail = self._jail
        command = self._command(argv, env, workdir, uid, network or Network())
        targets = [bind.target for bind in (*jail.binds, *command.binds)]
        require_untouched(self._space.root, [*targets, *host_directories(), "/proc", "/dev"])
        with options_file(bwrap_options(jail, command)) as options_fd:
            task = asyncio.create_task(
                run_jail(
                    lambda status_fd: launch_argv(jail, command, options_fd, status_fd),
                    pass_fds=(options_fd,),
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    timeout_s=timeout_s,
                )
            )
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            try:
                return await task
            except asyncio.CancelledError:
                if self._jail is None and not _is_being_cancelled():
                    raise RuntimeError("the local environment was stopped while a command ran") from None
                raise

    def _command(
        self, argv: Sequence[str], env: Mapping[str, str], workdir: str, uid: int, network: Network
    ) -> JailCommand:
        binds = [self._hosts_bind(network)]
        forwards = [] if network.shared else allowed(self._settings.forwards, network.hosts)
        if forwards:
            # Only now, and only the allowed ones: a unix socket is not stopped by a network namespace.
            sockets = [self._socket_bind(forward) for forward in forwards]
            assert self._space is not None
            binds += [Bind(self._space.run / "relay.py", _RELAY), *sockets]
            pairs = [f"{f.address}:{f.port}={bind.target}" for f, bind in zip(forwards, sockets, strict=True)]
            argv = (self._python.executable, "-I", _RELAY, *pairs, "--", *argv)
        full_env = {"PATH": JAIL_PATH, "LANG": "C.UTF-8", "TERM": "dumb", **env}
        return JailCommand(tuple(argv), full_env, workdir, uid, network.shared, tuple(binds))

    def _hosts_bind(self, network: Network) -> Bind:
        """The /etc/hosts of this network.  A shared network has the host's names, and forwards' hosts as loopback."""
        if network not in self._hosts_files:
            assert self._space is not None
            if network.shared:
                names = sorted({forward.host for forward in self._settings.forwards})
                text = _host_names() + "".join(f"127.0.0.1 {name}\n" for name in names)
            else:
                text = hosts_file(allowed(self._settings.forwards, network.hosts))
            path = self._space.run / f"hosts-{len(self._hosts_files)}"
            path.write_text(text)
            self._hosts_files[network] = Bind(path, "/etc/hosts")
        return self._hosts_files[network]

    def _socket_bind(self, forward: Forward) -> Bind:
        assert self._forwarder is not None
        path = self._forwarder.socket_path(forward)
        return Bind(path, f"/jail/{path.name}")

    # --- closing ------------------------------------------------------------------------------------------------------

    async def _close_after(self, building: asyncio.Future[None]) -> None:
        await asyncio.gather(building, return_exceptions=True)
        await self.close(delete=True)

    async def close(self, *, delete: bool) -> Path | None:
        """Kill what runs and remove everything; with `delete` False the tree is kept and its path returned."""
        space, self._space, self._jail = self._space, None, None
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        if self._forwarder is not None:
            await self._forwarder.stop()
        await asyncio.to_thread(self._groups.remove)
        self._groups = ControlGroups()
        if space is None:
            return None
        if not delete:
            return space.keep()
        await asyncio.to_thread(space.remove)
        return None


def _host_names() -> str:
    path = Path("/etc/hosts")
    return path.read_text(encoding="utf-8") if path.is_file() else "127.0.0.1 localhost\n"


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _make_usable(bind: Bind, uid: int | None) -> None:
    """Let the jailed account write to a writable mount that only the harness's account may write to."""
    found = bind.source.stat()
    if uid is not None and bind.writable and found.st_uid != uid and not found.st_mode & 0o002:
        os.chown(bind.source, uid, -1)


def _choose_cpus(count: float | None) -> tuple[int, ...]:
    """A random choice, so that concurrent trials do not all sit on the first processor."""
    available = sorted(os.sched_getaffinity(0))
    if count is None or math.ceil(count) >= len(available):
        return ()
    return tuple(sorted(random.sample(available, math.ceil(count))))
