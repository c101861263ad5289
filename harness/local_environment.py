"""A Harbor environment for machines without a container engine: every command runs in its own bubblewrap jail.

A per-trial directory plays the container's file system, so tasks find their literal paths (`/workspace`, `/tests`,
`/logs/verifier`) and unmodified tasks run.  Unlike in a container no process outlives its command, Dockerfile RUN
lines have no effect, and log directories are always copied, never mounted.  Not provided: a disk quota, and separation
between the users inside one jail.

Keyword arguments (`environment.kwargs` of a trial, `--ek` of `harbor run`):

* `forward`: {"host:port": "host:port"}, the endpoints reachable under the network mode "allowlist".
* `extra_ro`: host directories to show read-only at the same path.
* `host_uid`: account for jails when Harbor runs as root (65534); null keeps root's identity without its capabilities.
* `state_root`: parent of the trial directories (the system's temporary directory).
* `python`: "auto", "system" or "bundled", see `harness.jail.python`.
* `gpus`: show the host's NVIDIA devices.
* `max_output_bytes` (per stream), `max_transfer_bytes` (per download), `max_processes` (all jails of the trial).
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.models.task.config import NetworkMode, NetworkPolicy
from harbor.models.trial.config import ResourceMode
from harbor.models.trial.paths import EnvironmentPaths

from harness.jail import transfer
from harness.jail.check import check_jail
from harness.jail.command import Bind
from harness.jail.forwarder import parse_forwards
from harness.jail.image import USERS, ImageRecipe, apply_dockerfile, place_in
from harness.jail.machine import JailMachine, MachineSettings, Network
from harness.jail.process import CappedFile, CappedText, Sink
from harness.jail.python import PythonChoice, choose_python
from harness.jail.tools import DEFAULT_HOST_UID, JailUnavailable, find_tools

_PATHS = EnvironmentPaths()


class LocalEnvironment(BaseEnvironment):
    """Plays the container of one trial; the module's text lists the keyword arguments."""

    def __init__(
        self,
        *args: Any,
        forward: Mapping[str, str] | None = None,
        extra_ro: Sequence[str] = (),
        host_uid: int | None = DEFAULT_HOST_UID,
        state_root: str | None = None,
        python: PythonChoice = "auto",
        gpus: bool = False,
        max_output_bytes: int = 8 << 20,
        max_transfer_bytes: int = 4 << 30,
        max_processes: int = 2048,
        **kwargs: Any,
    ) -> None:
        # All of this before super(): its validators read `capabilities` and the forwards.
        self._forwards = parse_forwards(forward or {})
        self._extra_ro = tuple(Path(path) for path in extra_ro)
        self._host_uid = host_uid
        self._state_root = Path(state_root) if state_root is not None else None
        choose_python(python)
        self._python: PythonChoice = python
        self._gpus = gpus
        self._max_output_bytes = max_output_bytes
        self._max_transfer_bytes = max_transfer_bytes
        self._max_processes = max_processes
        self._machine: JailMachine | None = None
        self._may_be_planted = True
        super().__init__(*args, **kwargs)

    # --- what Harbor asks before a trial ------------------------------------------------------------------------------

    @staticmethod
    def type() -> str:
        """The name that Harbor shows for this kind of environment."""
        return "local-bubblewrap"

    @classmethod
    def preflight(cls, kwargs: Mapping[str, Any] | None = None) -> None:
        """Try to escape from a jail on this machine; SystemExit with the cure where that works or none can be built."""
        given = kwargs or {}
        state_root = given.get("state_root")
        try:
            tools = find_tools(given.get("host_uid", DEFAULT_HOST_UID))
            check_jail(tools, Path(state_root) if state_root is not None else None)
        except JailUnavailable as error:
            raise SystemExit(str(error)) from error

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """Exactly what is enforced; each command has its own network, so the policy may change between phases."""
        return EnvironmentCapabilities(
            gpus=self._gpus,
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            dynamic_network_policy=True,
        )

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """Hard ceilings; nothing is reserved."""
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True)

    def _validate_definition(self) -> None:
        if not self.environment_dir.is_dir():
            raise FileNotFoundError(f"the task has no environment directory: {self.environment_dir}")

    def validate_network_policy_support(self, network_policy: NetworkPolicy | None = None) -> None:
        """Refuse an allowlist with a host that has no forward: the task could not reach it."""
        super().validate_network_policy_support(network_policy)
        policy = network_policy or self._network_policy
        if policy.network_mode != NetworkMode.ALLOWLIST:
            return
        reachable = {forward.host for forward in self._forwards}
        if missing := sorted(host for host in policy.allowed_hosts if host.lower() not in reachable):
            raise ValueError(
                f"the task's network allowlist names {', '.join(missing)}, which the environment kwarg forward leads "
                f'nowhere; add for example forward={{"{missing[0]}:8081": "127.0.0.1:8081"}}'
            )

    async def _apply_network_policy(self, network_policy: NetworkPolicy) -> None:
        """Nothing to switch: the base class stores the policy and the next command's network follows it."""

    # --- lifecycle ----------------------------------------------------------------------------------------------------

    async def start(self, force_build: bool) -> None:
        """Build the trial's machine; `force_build` makes no difference because nothing is cached.

        Raises:
            JailUnavailable: this machine cannot build a jail that holds, or nothing starts in it.
        """
        for forward in self._forwards:
            if self._network_is_public and forward.port != forward.upstream_port:
                self.logger.warning(
                    "the task's network mode is public, so its jail shares the host's ports: %s:%d leads to port %d of "
                    "this machine, not to the forward's %d; use network_mode = 'allowlist'",
                    *(forward.host, forward.port, forward.port, forward.upstream_port),
                )
        memory_mb = self._resource_limit_value("memory", auto_mode=ResourceMode.LIMIT)
        settings = MachineSettings(
            forwards=self._forwards,
            mounts=tuple(self._wanted_binds()),
            host_uid=self._host_uid,
            state_root=self._state_root,
            python=self._python,
            cpus=self._resource_limit_value("cpu", auto_mode=ResourceMode.LIMIT),
            memory_bytes=None if memory_mb is None else int(memory_mb) << 20,
            memory_required=self._memory_resource_mode != ResourceMode.AUTO,
            max_processes=self._max_processes,
        )
        self._machine = await JailMachine.open(settings, self._fill, self.logger)
        await self.ensure_dirs(self._mount_targets(writable_only=True), chmod=True)
        if self._holds_tests():
            await self.upload_dir(self.environment_dir, str(_PATHS.tests_dir))
        await self._upload_environment_dir_after_start()

    async def stop(self, delete: bool) -> None:
        """Kill what runs and remove everything, or keep the file tree when `delete` is False."""
        machine, self._machine = self._machine, None
        if machine is not None and (kept := await machine.close(delete=delete)) is not None:
            self.logger.info("kept the local environment's files in %s", kept)

    def _fill(self, root: Path) -> ImageRecipe:
        recipe = apply_dockerfile(self.environment_dir, root, self.logger)
        if self.task_env_config.workdir:
            recipe.workdir = self.task_env_config.workdir
        place_in(root, recipe.workdir).mkdir(parents=True, exist_ok=True)
        return recipe

    def _wanted_binds(self) -> list[Bind]:
        binds = [Bind(path.resolve(strict=True), str(path.absolute())) for path in self._extra_ro]
        if self._gpus:
            binds += [Bind(path, str(path), device=True) for path in sorted(Path("/dev").glob("nvidia*"))]
        for mount in self._mounts:
            if PurePosixPath(mount["target"]).is_relative_to(_PATHS.logs_dir):
                continue  # Harbor copies logs out of environments that do not mount them
            if mount["type"] != "bind":
                raise ValueError(
                    f"the local environment mounts host directories only, not a {mount['type']!r}: {mount}"
                )
            source = Path(mount["source"]).resolve(strict=True)
            binds.append(Bind(source, mount["target"], writable=not mount.get("read_only", False)))
        return binds

    def _holds_tests(self) -> bool:
        """A separate verifier's environment directory is the tests directory, and its image is expected to hold it."""
        return "__verifier__" in self.session_id and (self.environment_dir / "test.sh").is_file()

    # --- commands -----------------------------------------------------------------------------------------------------

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a bash command in a jail of its own.

        Raises:
            RuntimeError: it ran longer than `timeout_sec`, or the environment does not run.
        """
        machine = self._running_machine()
        self._may_be_planted = True
        resolved = self._resolve_user(user)
        uid, home = _look_up(resolved if resolved is not None else machine.recipe.user)
        callback = self._output_callback()
        listeners = [None if callback is None else partial(callback, stream=name) for name in ("stdout", "stderr")]
        stdout, stderr = (CappedText(self._max_output_bytes, listener) for listener in listeners)
        try:
            status = await machine.run(
                ("/bin/bash", "-c", command),
                env={"HOME": home, **machine.recipe.env, **(self._merge_env(env) or {})},
                workdir=cwd or machine.recipe.workdir,
                uid=uid,
                network=self._network(),
                stdout=stdout,
                stderr=stderr,
                timeout_s=timeout_sec,
            )
        except TimeoutError:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds") from None
        return ExecResult(stdout=stdout.text(), stderr=stderr.text(), return_code=status)

    def _network(self) -> Network:
        if self._network_is_allowlist:
            return Network(hosts=frozenset(self._network_policy.allowed_hosts))
        return Network(shared=self._network_is_public)

    def _running_machine(self) -> JailMachine:
        if self._machine is None:
            raise RuntimeError("the local environment is not running")
        return self._machine

    async def _plumb(
        self, argv: list[str], doing: str, *, stdin: IO[bytes] | None = None, out: Sink | None = None
    ) -> None:
        """Run one of our own helper commands: no network, and nothing of the task's environment variables."""
        complaint = CappedText(4096)
        machine = self._running_machine()
        status = await machine.run(argv, env={}, stdin=stdin, stdout=out or CappedText(0), stderr=complaint)
        if status != 0:
            raise RuntimeError(f"{doing} failed with status {status}: {complaint.text().strip()}")

    # --- files --------------------------------------------------------------------------------------------------------

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy one host file to a path in the jail."""
        target = PurePosixPath(target_path)
        await self._upload(Path(source_path), target.name, str(target.parent))

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy the contents of a host directory into a directory of the jail."""
        if PurePosixPath(target_dir) == _PATHS.tests_dir and self._may_be_planted:
            # Grading begins.  What commands left in /tests would run with the tests, and a reward file already in the
            # verifier's directory would count.  Tests uploaded in a row (shared ones, then a step's) all stay.
            clean = self._empty_dirs_command([_PATHS.tests_dir, _PATHS.verifier_dir])
            await self._plumb(["/bin/bash", "-c", clean], "emptying the tests and verifier directories")
            self._may_be_planted = False
        await self._upload(Path(source_dir), ".", target_dir)

    async def _upload(self, source: Path, name: str, target_dir: str) -> None:
        with await asyncio.to_thread(transfer.pack, source, name) as spool:
            await self._plumb(transfer.unpack_command(target_dir), f"the upload to {target_dir}", stdin=spool)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy one file of the jail to the host; a link is followed, in the jail."""
        source = PurePosixPath(source_path)
        with tempfile.TemporaryFile() as spool:
            await self._fetch(spool, source_path, transfer.pack_command(str(source.parent), [source.name], follow=True))
            await asyncio.to_thread(transfer.unpack_file, spool, source.name, Path(target_path))

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy the plain files and directories below a directory of the jail to the host; links are left out."""
        await self._download_tree(source_dir, Path(target_dir))

    async def _download_dir_with_exclusions_impl(
        self, *, source_dir: str, target_dir: Path | str, exclude: list[str], service: str | None
    ) -> None:
        """The base class would unpack links on the host."""
        if not self.is_main_service(service):
            raise ValueError(self._service_unsupported_message(str(service)))
        await self._download_tree(source_dir, Path(target_dir), exclude)

    async def _download_tree(self, source_dir: str, target: Path, exclude: Sequence[str] = ()) -> None:
        with tempfile.TemporaryFile() as spool:
            await self._fetch(spool, source_dir, transfer.pack_command(source_dir, ["."], exclude=exclude))
            left_out = await asyncio.to_thread(transfer.unpack_tree, spool, target)
        if left_out:
            self.logger.info("left out of the download of %s (no plain files): %s", source_dir, left_out[:20])

    async def _fetch(self, spool: IO[bytes], what: str, argv: list[str]) -> None:
        await self._plumb(argv, f"the download of {what}", out=CappedFile(spool, self._max_transfer_bytes, what))
        spool.seek(0)


def _look_up(user: str | int | None) -> tuple[int, str]:
    """The (uid, home) of a user in the jail; None is root, a number needs no account."""
    if user is None:
        return USERS["root"]
    if str(user).isdigit():
        uid = int(user)
        return next((entry for entry in USERS.values() if entry[0] == uid), (uid, "/"))
    if user not in USERS:
        raise ValueError(f"no user {user!r} in the local environment; there are {', '.join(USERS)}, or use a number")
    return USERS[str(user)]
