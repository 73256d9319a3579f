"""Empty Debian roots made from packages, and the build of a Dockerfile in them.

There is no container engine here. What one would do, `unshare` and `chroot` do: each instruction of the Dockerfile runs in
a copy of a root that mmdebstrap makes, which holds what the image `debian:13-slim` holds and little more. Needs root and
the network.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

SUITES = {"debian:13-slim": "trixie", "debian:12-slim": "bookworm"}
ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 900
_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
_BUNDLE_INSIDE = Path("/etc/ca-of-this-machine.pem")
_USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# How this machine reaches the network; a build may need it, and an image must not have it.
_OF_THE_NETWORK = re.compile(
    r"(?i)(.*_proxy|pip_index_url|pip_default_timeout|npm_config_registry)"
)


def make_root(image: str, folder: Path, packages: Sequence[str] = ()) -> None:
    """Fill a folder with the root that stands for this base image."""
    include = ["--include=" + ",".join(packages)] if packages else []
    slim = [f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in ("doc", "man", "locale")]
    subprocess.run(
        [
            *("mmdebstrap", "--quiet", "--variant=minbase", '--aptopt=Acquire::Retries "3"'),
            *(*slim, *include, SUITES[image], str(folder)),
        ],
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    # As the image has it: downloaded packages are not kept.
    (folder / "etc/apt/apt.conf.d/docker-clean").write_text(
        'Dir::Cache::pkgcache "";\nDir::Cache::srcpkgcache "";\n'
        'Binary::apt::APT::Keep-Downloaded-Packages "false";\nAPT::Keep-Downloaded-Packages "false";\n'
        'DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/*.bin || true"; };\n'
    )
    for name in ("resolv.conf", "hosts"):
        shutil.copy(f"/etc/{name}", folder / "etc" / name)
    shutil.copy(_BUNDLE, folder / _BUNDLE_INSIDE.relative_to("/"))


def network() -> dict[str, str]:
    """What a command in a root needs to know to reach the network as this machine does."""
    found = {}
    for name, value in os.environ.items():
        if value and Path(value) == _BUNDLE:
            found[name] = str(_BUNDLE_INSIDE)
        elif _OF_THE_NETWORK.fullmatch(name):
            found[name] = value
    return found


def command_in(
    root: Path,
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    uid: int = 0,
    directory: str = "/",
    read_only: bool = False,
    shared: Sequence[Path] = (),
    own_processes: bool = True,
) -> list[str]:
    """A command line that runs a command in a root, as a user and in a directory, with its own mounts.

    A user other than root has no capability and cannot get one. `shared` are folders of this machine, at the same places.
    With `own_processes` it is process 1, as in a container, and sees no others.
    """
    inside = ["chroot", str(root), "env", "--ignore-environment", *_assignments(env)]
    inside += ["sh", "-c", f'cd {shlex.quote(directory)} && exec "$@"', "sh", *command]
    if uid:
        user = [f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--no-new-privs"]
        # Dropped inside, because chroot needs a capability.
        program = ["setpriv", *user, "--bounding-set=-all", "--inh-caps=-all", *command]
        inside[-len(command) :] = program
    mounts = [f"mount --bind {root} {root}"]
    for folder in shared:
        mounts += [f"mkdir -p {root}{folder}", f"mount --bind {folder} {root}{folder}"]
    if read_only:
        mounts += [f"mount -o remount,bind,ro {root}"]
    mounts += [f"mount -t proc proc {root}/proc", f"mount --rbind /dev {root}/dev"]
    script = " && ".join([*mounts, 'exec "$@"'])
    processes = ["--pid", "--fork", "--kill-child"] if own_processes else []
    return ["unshare", "--mount", *processes, "sh", "-c", script, "sh", *inside]


def _assignments(env: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in ({"PATH": _USUAL_PATH} | dict(env)).items()]


@contextlib.contextmanager
def booted(root: Path, shared: Mapping[Path, str]) -> Iterator[Callable[..., str]]:
    """Boot the systemd of a root as process 1, in the network of this machine; yields what runs a command in it.

    `shared` are folders of this machine, with their places inside.
    """
    (root / "etc" / "machine-id").unlink(missing_ok=True)  # it makes one when it boots
    binds = [f"--bind={folder}:{place}" for folder, place in shared.items()]
    own = ["--register=no", "--keep-unit", "--console=passive", f"--machine=hb{os.getpid()}"]
    process = subprocess.Popen(
        ["systemd-nspawn", "--quiet", "--boot", f"--directory={root}", *own, *binds],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def run(*command: str, check: bool = True) -> str:
        (first,) = psutil.Process(process.pid).children()
        inside = ["nsenter", f"--target={first.pid}", "--all", *command]
        done = subprocess.run(inside, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def is_up() -> bool:
        assert process.poll() is None, "systemd-nspawn has ended"
        if not psutil.Process(process.pid).children():
            return False
        return run("systemctl", "is-system-running", check=False) in ("running", "degraded")

    try:
        deadline = time.monotonic() + 60
        while not is_up():
            assert time.monotonic() < deadline, "systemd did not boot"
            time.sleep(0.1)
        yield run
        run("systemctl", "poweroff", check=False)
        process.wait(60)
    finally:
        process.kill()
        process.wait()


class Instruction(NamedTuple):
    name: str
    text: str


def instructions(dockerfile: str) -> list[Instruction]:
    """The instructions of a Dockerfile, without comments, each in one line."""
    lines = [line for line in dockerfile.splitlines() if not line.lstrip().startswith("#")]
    whole = re.sub(r"\\\n", " ", "\n".join(lines))
    return [Instruction(*line.split(maxsplit=1)) for line in whole.splitlines() if line.strip()]


class Image:
    """What the last stage of a Dockerfile makes: a root, and how its program is run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.env: dict[str, str] = {"PATH": _USUAL_PATH}
        self.arguments: dict[str, str] = {}
        self.directory = "/"
        self.uid = 0
        self.entrypoint: list[str] = []
        self.health: list[str] = []

    def command(self, *arguments: str, shared: Sequence[Path] = (), **variables: str) -> list[str]:
        """A command line that runs the image's program as Kubernetes would: its user, a read-only root."""
        return self.run([*self.entrypoint, *arguments], shared, variables)

    def health_check(self, **variables: str) -> list[str]:
        return self.run(self.health, (), variables)

    def run(
        self, command: Sequence[str], shared: Sequence[Path], variables: Mapping[str, str]
    ) -> list[str]:
        return command_in(
            self.root,
            command,
            env=self.env | variables,
            uid=self.uid,
            directory=self.directory,
            read_only=True,
            shared=shared,
        )


def build(dockerfile: Path, base: Path, folder: Path, arguments: Mapping[str, str]) -> Image:
    """Run the instructions of a Dockerfile; each stage begins with a copy of the root `base`."""
    stages: dict[str, Image] = {}
    image = Image(folder)
    for name, text in instructions(dockerfile.read_text()):
        if name == "FROM":
            origin, _, alias = text.partition(" AS ")
            assert origin in SUITES
            image = stages[alias or "last"] = Image(folder / (alias or "last"))
            subprocess.run(["cp", "--archive", str(base), str(image.root)], check=True)
        elif name == "ARG":
            argument, _, default = text.partition("=")
            image.arguments[argument] = arguments.get(argument, default)
        elif name == "ENV":
            for word in shlex.split(text):
                variable, _, value = word.partition("=")
                image.env[variable] = value.replace("$PATH", image.env["PATH"])
        elif name == "WORKDIR":
            image.directory = text
            (image.root / text.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif name == "USER":
            image.uid = int(text.partition(":")[0])
        elif name == "COPY":
            _copy(image, stages, text.split())
        elif name == "RUN":
            assert image.uid == 0
            env = image.env | image.arguments | network()
            subprocess.run(
                command_in(image.root, ["sh", "-c", text], env=env, directory=image.directory),
                check=True,
                stdin=subprocess.DEVNULL,
                timeout=PATIENCE_SECONDS,
            )
        elif name == "ENTRYPOINT":
            image.entrypoint = json.loads(text)  # the exec form: no shell that keeps the signals
        elif name == "HEALTHCHECK":
            image.health = json.loads(text.partition("CMD ")[2])
        else:
            assert name in ("CMD", "EXPOSE"), f"unknown: {name}"
    return image


def _copy(image: Image, stages: Mapping[str, Image], words: list[str]) -> None:
    if words[0].startswith("--from="):
        origin = stages[words.pop(0).removeprefix("--from=")].root
        (source, target) = words
        copied = origin / source.lstrip("/")
        shutil.copytree(copied, image.root / target.lstrip("/"), symlinks=True)
        return
    *sources, target = words
    folder = image.root / image.directory.lstrip("/") / target
    for source in sources:
        if (ROOT / source).is_dir():
            _copy_folder(source, folder)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / source, folder)


def _copy_folder(source: str, folder: Path) -> None:
    """Copy what git would: nothing that was built or installed in the checkout."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", source]
    done = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True)
    for name in filter(None, done.stdout.split("\0")):
        target = folder / Path(name).relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
