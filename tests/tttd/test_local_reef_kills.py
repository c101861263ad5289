"""A power cut at every stage of train, publish and commit: the step is committed exactly once, with the same bytes.

Each chain is one service on one state directory that is killed again and again: the step that dies is finished by the
next start, and the step after it trains on top and dies at the next point.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from support.faults import Fault, PushFault
from support.reef_process import TINY_OPTIONS, ReefProcess
from support.reef_state import ReefState, consumed_by
from support.reef_zygote import shared_zygote

pytestmark = pytest.mark.slow

TRAINER = "tttd.local.training_runtime"
SERVER = "tttd.local.inference_runtime:LocalInferenceRuntime"
LOADS = "tttd.local.state:LoadTable"
SCHEDULER = "reef.runtime.scheduler:RuntimeScheduler"
GIT = "reef.artifact.git_lfs:GitLFSRepositoryBackend"
GIT_COMMAND = "reef.artifact.git_client:GitClient.run"
LOG = "reef.storage.commit_log:CommitLog"


@dataclass(frozen=True)
class TornCommit:
    """The power goes while the commit's line is written: this half of it is in the log."""

    half: str = '{"algorithm_state":{"steps":1},"artifact_ref":{"content_id":"conte'


Cut = Fault | PushFault | TornCommit

TRAIN: dict[str, Cut] = {
    "before training": Fault(f"{TRAINER}:LocalTrainingRuntime.train_candidate"),
    "after the first gradient": Fault("torch.autograd:backward", "after"),
    "when trained, nothing written": Fault(f"{TRAINER}:write_checkpoint"),
    "when the adapter is written, the optimizer not": Fault("safetensors.torch:save_file", "after"),
    "when the manifest is not written": Fault("safetensors.torch:save_file", "after", call=2),
    "when the candidate has its temporary name": Fault("os:rename", text="/checkpoints/"),
    "when the candidate is in place": Fault("os:rename", "after", text="/checkpoints/"),
    "when the candidate is trained": Fault(f"{TRAINER}:LocalTrainingRuntime.train_candidate", "after"),
    "before activation": Fault(f"{SERVER}.activate_candidate"),
    "before the load id is written": Fault(f"{LOADS}.mint"),
    "when the load id has its temporary name": Fault("os:replace", text="loads.json"),
    "after activation": Fault(f"{SERVER}.activate_candidate", "after"),
    "when the release is staged": Fault("reef.artifact.repository:Repository.stage", "after"),
    "before the git release": Fault(f"{GIT}.publish"),
    "when the git commit is made but not pushed": Fault("reef.artifact.git_lfs:_GitWorkspace.commit_files", "after"),
    "in the push of the release": PushFault("refs/reef/releases/"),
}
COMMIT: dict[str, Cut] = {
    "when the release is pushed but not cached": Fault(f"{GIT}._cache_release"),
    "after the git release": Fault(f"{GIT}.publish", "after"),
    "before the commit": Fault(f"{LOG}.append"),
    "in the commit": TornCommit(),
    "after the commit": Fault(f"{LOG}.append", "after"),
    "before the branch moves": Fault(f"{GIT}.commit_release"),
    "in the push that moves the branch": PushFault("refs/reef/scenarios/"),
    "after the branch moved": Fault(f"{GIT}.commit_release", "after"),
    "before the acknowledgement": Fault(f"{SCHEDULER}.acknowledge_commit"),
    "when the published load has its temporary name": Fault("os:replace", call=2, text="loads.json"),
    "when the load is published": Fault("os:replace", "after", call=2, text="loads.json"),
    "while an old checkpoint is deleted": Fault("os:unlink", "after", call=2, text="optimizer.safetensors"),
    "after everything": Fault(f"{SCHEDULER}.acknowledge_commit", "after"),
}
STEPS = max(len(TRAIN), len(COMMIT))


def service(folder: Path, model: Path) -> ReefProcess:
    return ReefProcess(folder, model, options=TINY_OPTIONS, zygote=shared_zygote())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[ReefProcess]:
    """A running service that nothing has disturbed; the first test makes it train STEPS steps."""
    reef = service(tmp_path_factory.mktemp("whole"), tiny_model)
    reef.start()
    try:
        yield reef
    finally:
        reef.kill()


def train_to(reef: ReefProcess, count: int) -> None:
    """Train steps, undisturbed, until `count` are committed."""
    for step in range(reef.scenario_status()["scenario_step"], count):
        reef.run_step(step)
        reef.wait_for_steps(step + 1)


class Chain:
    """One service that survives the given power cuts, one in each step."""

    def __init__(self, reef: ReefProcess, cuts: Mapping[str, Cut]) -> None:
        self.reef = reef
        self.cuts = cuts
        self.state = ReefState(reef.state_dir)
        self.done = 0

    def run(self) -> None:
        self.reef.start()
        try:
            for name, cut in self.cuts.items():
                try:
                    self.survive(cut)
                except Exception as error:
                    raise AssertionError(f"step {self.done} of {self.state.root}, killed {name}: {error}") from error
        finally:
            self.reef.kill()

    def survive(self, cut: Cut) -> None:
        if isinstance(cut, PushFault):
            cut.arm(self.reef.state_dir / "artifacts.git")
        else:
            self.reef.arm(Fault(f"{LOG}.append") if isinstance(cut, TornCommit) else cut)
        receipts = self.reef.die_in_step(self.done)
        if isinstance(cut, PushFault):
            assert [name for name in self.state.leftovers() if name.endswith(".lock")]
        if isinstance(cut, TornCommit):
            with self.state.commit_log.open("a", encoding="utf-8") as log:
                log.write(cut.half)
        self.reef.start()
        self.done += 1
        status = self.reef.wait_for_steps(self.done)
        self.check(status["current_runtime_load_id"], receipts)

    def check(self, load_id: str, receipts: set[str]) -> None:
        """Commit log, releases and load ids agree, nothing was trained twice and nothing is left behind."""
        commits = self.state.commits()
        assert [commit["step"] for commit in commits] == list(range(1, self.done + 1))
        assert receipts <= set(consumed_by(commits[-1]))
        consumed = self.state.consumed()
        assert len(consumed) == len(set(consumed))
        assert self.state.head() == commits[-1]["artifact_ref"]["release_id"]
        loads = self.state.loads()
        assert loads["published"] == load_id == f"{loads['incarnation']}:{self.done}"
        assert len(loads["checkpoints"]) == len(set(loads["checkpoints"])) == self.done + 1
        assert set(self.state.checkpoints()) <= set(loads["checkpoints"])
        assert self.state.leftovers() == []


def test_a_step_killed_at_any_point_is_committed_once_with_the_bytes_of_an_undisturbed_run(
    tmp_path: Path, tiny_model: Path, whole: ReefProcess
) -> None:
    chains = [Chain(service(tmp_path / name, tiny_model), cuts) for name, cuts in (("a", TRAIN), ("b", COMMIT))]
    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(chain.run) for chain in chains]
        running.append(pool.submit(train_to, whole, STEPS))
        for finished in running:
            finished.result()
    expected = ReefState(whole.state_dir).adapters()
    assert len(set(expected)) == STEPS
    for chain in chains:
        assert chain.state.adapters() == expected[: len(chain.cuts)]


def test_a_first_start_that_is_killed_again_and_again_ends_in_a_fresh_service(tmp_path: Path, tiny_model: Path) -> None:
    reef = service(tmp_path, tiny_model)
    try:
        for calls in (3, 8, 16, 28):
            reef.launch()
            reef.arm(Fault(GIT_COMMAND, "after", call=calls))
            with pytest.raises(AssertionError, match="reef ended"):
                reef.await_ready()
            reef.kill()
        reef.start()
        reef.run_step(0)
        reef.wait_for_steps(1)
        state = ReefState(tmp_path)
        assert len(state.adapters()) == len(state.commits()) == 1
        assert state.leftovers() == []
    finally:
        reef.kill()


@pytest.mark.parametrize(
    ("cut", "rolled_back"),
    [
        (Fault(f"{GIT}.publish", "after"), False),
        (Fault(f"{LOG}.append"), False),
        (Fault(f"{LOG}.append", "after"), True),
    ],
    ids=["released", "before the commit", "after the commit"],
)
def test_a_killed_rollback_happened_or_did_not_and_training_goes_on(
    whole: ReefProcess, cut: Fault, rolled_back: bool
) -> None:
    train_to(whole, 4)
    state = ReefState(whole.state_dir)
    done, before = len(state.commits()), state.adapters()
    releases = whole.releases()
    target = next(row["release_id"] for row in releases[2:] if not row.get("rollback_target_release_id"))
    whole.arm(cut)
    with pytest.raises(httpx.TransportError):
        whole.call("POST", f"/reef/scenarios/{whole.scenario}/rollback", {"release_id": target})
    whole.wait_until_dead()
    whole.start()
    done += rolled_back
    assert len(state.commits()) == whole.scenario_status()["scenario_step"] == done
    assert state.adapters() == ([*before, before[-3]] if rolled_back else before)
    whole.run_step(100 + done)
    whole.wait_for_steps(done + 1)
    assert state.adapters()[:-1] == ([*before, before[-3]] if rolled_back else before)
    assert state.leftovers() == []


def test_the_releases_alone_bring_a_service_back(whole: ReefProcess) -> None:
    before = whole.probe()
    done = whole.scenario_status()["scenario_step"]
    whole.stop()
    shutil.rmtree(whole.state_dir / "backend" / "checkpoints")
    shutil.rmtree(whole.state_dir / "artifact-cache")
    shutil.rmtree(whole.state_dir / "artifact-work")
    whole.start()
    assert whole.probe() == before
    whole.run_step(200)
    whole.wait_for_steps(done + 1)
