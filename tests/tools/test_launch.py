"""The launch files are what their programs take, and start what they say; no cluster is needed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.corpora import kept_corpus
from tools.train import CONTEXT, END, loader_of, parsed

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "tools/launch"
SCRIPTS = ["slurm_srun.sbatch", "slurm_torchrun.sbatch", "torchrun.sh"]
MANIFESTS = ["kubernetes_job.yaml", "kubernetes_pytorchjob.yaml"]
LIMIT_S = 90

# Fields of a PyTorchJob of Kubeflow's training operator 1.x; another name is a slip.
PYTORCHJOB = {
    "runPolicy": {
        "activeDeadlineSeconds",
        "backoffLimit",
        "cleanPodPolicy",
        "managedBy",
        "schedulingPolicy",
        "suspend",
        "ttlSecondsAfterFinished",
    },
    "elasticPolicy": {
        "maxReplicas",
        "maxRestarts",
        "metrics",
        "minReplicas",
        "nProcPerNode",
        "rdzvBackend",
        "rdzvConf",
        "rdzvHost",
        "rdzvId",
        "rdzvPort",
        "standalone",
    },
    "pytorchReplicaSpecs": {"Master", "Worker"},
    "nprocPerNode": {""},
}

# What the fake commands of Slurm do; each writes down how it was called.
FAKES = {
    "srun": """
        for rank in 0 1; do
            SLURM_PROCID=$rank SLURM_LOCALID=$rank SLURM_NTASKS=2 "${@:2}" &
        done
        code=0
        for task in $(jobs -p); do wait "$task" || code=$?; done
        exit $code""",
    "scontrol": '[ "$1" != show ] || printf "node1\\nnode2\\n"',
    "scancel": 'touch "$FAKES/told-to-stop"',
    "python": """
        place="${MASTER_ADDR:-}:${MASTER_PORT:-}"
        echo "rank ${RANK:-} of ${WORLD_SIZE:-} at $place" >> "$FAKES/ranks"
        touch "$FAKES/started"
        [ -z "${FAKE_WAITS:-}" ] || until [ -e "$FAKES/told-to-stop" ]; do sleep 0.05; done
        exit "${FAKE_CODE:-0}" """,
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_sound_bash(name):
    done = subprocess.run(["bash", "-n", LAUNCH / name], capture_output=True, check=False)
    assert not done.stderr


def test_shellcheck_has_nothing_to_say():
    beside = str(Path(sys.executable).parent)  # where pip puts it
    shellcheck = shutil.which("shellcheck", path=beside) or shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(
        [shellcheck, *SCRIPTS], cwd=LAUNCH, capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stdout


def test_torchrun_and_the_training_script_take_what_they_are_given():
    from torch.distributed.run import get_args_parser

    environment = {"PATH": os.defpath, "PYTHON": "echo", "HEAD": "node1", "NNODES": "2:3"}
    done = subprocess.run(
        ["bash", LAUNCH / "torchrun.sh", "s3://bucket/corpus", "/shared/run", "--cache", "/nvme"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    module, *given = done.stdout.split()[1:]
    assert module == "torch.distributed.run"
    options = get_args_parser().parse_args(given)
    assert (options.nnodes, options.rdzv_endpoint) == ("2:3", "node1:29400")
    assert Path(options.training_script).resolve() == ROOT / "tools/train.py"
    trained = parsed(options.training_script_args)
    assert (trained.shards, trained.cache) == ("s3://bucket/corpus", Path("/nvme"))


def test_the_script_learns_the_bytes_of_the_field_that_is_named(tmp_path):
    options = ["--field", "txt", "--num-workers", "0", "--batch-size", "3"]
    batch = next(iter(loader_of(parsed([str(kept_corpus((6,))), str(tmp_path), *options]))))
    assert batch["tokens"].shape == (3, CONTEXT + 1)
    assert all(bytes(row[row < END].tolist()).decode() for row in batch["tokens"])


class Slurm:
    """A batch job of two tasks, with commands that only write down how they were called."""

    def __init__(self, folder, script, **more):
        self.folder = folder
        for name, does in FAKES.items():
            body = f'#!/usr/bin/env bash\necho "$0 $*" >> "$FAKES/calls"\n{does}\n'
            (folder / name).write_text(body)
            (folder / name).chmod(0o755)
        environment = {
            "PATH": f"{folder}:{os.defpath}",
            "FAKES": str(folder),
            "SLURM_SUBMIT_DIR": str(ROOT),
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "node[1-2]",
            "SLURM_JOB_NUM_NODES": "2",
            "USER": "somebody",
            "SHARDS": "s3://bucket/corpus",
            "OUT": "/shared/run",
            **more,
        }
        self.batch = subprocess.Popen(
            ["bash", LAUNCH / script], env=environment, stderr=subprocess.PIPE, text=True
        )

    def calls(self, name):
        lines = (self.folder / "calls").read_text().splitlines()
        found = [line.partition(" ") for line in lines]
        return [arguments for command, _, arguments in found if Path(command).name == name]

    def end(self):
        """Exit code of the batch script."""
        said = self.batch.communicate(timeout=LIMIT_S)[1]
        assert not said
        return self.batch.returncode


@pytest.fixture
def slurm(tmp_path):
    started = []

    def start(script, **more):
        started.append(Slurm(tmp_path, script, **more))
        return started[-1]

    yield start
    for each in started:
        each.batch.kill()
        each.batch.communicate()


def test_a_task_of_srun_is_a_rank(slurm, tmp_path):
    job = slurm("slurm_srun.sbatch")
    assert job.end() == 0
    ranks = sorted((tmp_path / "ranks").read_text().splitlines())
    assert ranks == [f"rank {rank} of 2 at node1:20007" for rank in (0, 1)]
    script, *given = job.calls("python")[0].split()
    assert (ROOT / script).is_file()
    trained = parsed(given)
    assert (trained.out, trained.cache.name) == (Path("/shared/run"), "shardloader-somebody")
    assert job.calls("scontrol") == ["show hostnames node[1-2]"]


def test_srun_starts_torchrun_on_each_host(slurm):
    job = slurm("slurm_torchrun.sbatch")
    assert job.end() == 0
    first, second = job.calls("python")
    assert first == second
    assert "--nnodes 2 --nproc-per-node gpu" in first
    assert "--rdzv-endpoint node1:20007 --rdzv-id 7-0" in first
    assert "s3://bucket/corpus /shared/run --cache /tmp/shardloader-somebody" in first


@pytest.mark.parametrize("script", ["slurm_srun.sbatch", "slurm_torchrun.sbatch"])
def test_ranks_are_told_to_stop_before_the_time_is_up_and_the_job_is_queued_again(
    slurm, tmp_path, script
):
    job = slurm(script, FAKE_WAITS="yes", FAKE_CODE="75")
    deadline = time.monotonic() + LIMIT_S
    while not (tmp_path / "started").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    job.batch.send_signal(signal.SIGUSR1)
    assert job.end() == 75
    assert job.calls("scancel") == ["--signal=TERM 7"]
    assert job.calls("scontrol")[1:] == ["requeue 7"]


def test_a_job_of_ranks_that_fail_is_queued_again_so_many_times(slurm):
    assert slurm("slurm_srun.sbatch", FAKE_CODE="1").end() == 1
    last = slurm("slurm_srun.sbatch", FAKE_CODE="1", SLURM_RESTART_COUNT="20")
    assert last.end() == 1
    assert last.calls("scontrol").count("requeue 7") == 1


def documents(name):
    return list(yaml.safe_load_all((LAUNCH / name).read_text()))


def template(name):
    """The pods' template of a launch file."""
    spec = documents(name)[-1]["spec"]
    if "pytorchReplicaSpecs" in spec:
        return spec["pytorchReplicaSpecs"]["Worker"]["template"]
    return spec["template"]


@pytest.mark.parametrize("name", MANIFESTS)
def test_pods_mount_what_they_have_and_run_what_is_there(name):
    spec = template(name)["spec"]
    (container,) = spec["containers"]
    volumes = {volume["name"] for volume in spec["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    assert (ROOT / container["command"][-1]).is_file()
    values = {each["name"]: each["value"] for each in container["env"]}
    assert all(isinstance(value, str) for value in values.values())
    given = [values.get(each.strip("$()"), each) for each in container["args"]]
    trained = parsed(given)
    assert trained.shards == "s3://bucket/corpus"
    mounts = {each["name"]: Path(each["mountPath"]) for each in container["volumeMounts"]}
    assert (mounts["cache"], mounts["shared"]) == (trained.cache, trained.out.parent)
    least, most = map(int, values["NNODES"].split(":"))
    assert 2 * least > most


def test_the_pods_of_the_indexed_job_find_each_other():
    service, job = documents("kubernetes_job.yaml")
    labels = template("kubernetes_job.yaml")["metadata"]["labels"]
    assert service["spec"]["selector"] == labels
    pods = template("kubernetes_job.yaml")["spec"]
    assert pods["subdomain"] == service["metadata"]["name"]
    head = pods["containers"][0]["env"][1]["value"]
    assert head == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 4


def test_the_pytorchjob_has_the_operator_s_fields():
    (job,) = documents("kubernetes_pytorchjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    assert set(job["spec"]) <= set(PYTORCHJOB)
    for name, value in job["spec"].items():
        assert set(value) <= PYTORCHJOB[name], name
    workers = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    assert set(workers) == {"replicas", "restartPolicy", "template"}
    assert workers["template"]["spec"]["containers"][0]["name"] == "pytorch"
    assert workers["replicas"] == job["spec"]["elasticPolicy"]["maxReplicas"]


@pytest.mark.parametrize("name", MANIFESTS)
def test_kubernetes_takes_them(name):
    validate = pytest.importorskip("kubernetes_validate", exc_type=ImportError)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, **template(name)}
    checked = [pod, *(each for each in documents(name) if each["kind"] != "PyTorchJob")]
    for document in checked:
        validate.validate(document, validate.latest_version(), strict=True)
