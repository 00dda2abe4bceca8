"""ext4 images without root, power cuts for programs, atomic commands.

Each function runs the command ``stetfs`` that this package brings; ``stetfs --help`` and
``stetfs COMMAND --help`` describe what the commands do. Paths within an image begin with ``/``.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile

__all__ = ["Error", "Image", "command", "crash", "run", "tx"]


class Error(Exception):
    """The command failed. ``status`` is its exit code; the text is what it said."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


def command():
    """Return the path of the command: the one that was installed with this module, or the first on
    the path."""
    for directory in (sysconfig.get_path("scripts"), os.path.dirname(sys.executable)):
        path = os.path.join(directory, "stetfs")
        if os.access(path, os.X_OK):
            return path
    path = shutil.which("stetfs")
    if path is None:
        raise Error(127, "the command stetfs is not installed")
    return path


def run(*args, input=None):
    """Run ``stetfs ARGS`` and return its output as bytes.

    ``input`` (bytes) is its standard input. Raises ``Error`` if it fails.
    """
    args = [command(), *map(os.fspath, args)]
    stdin = {"stdin": subprocess.DEVNULL} if input is None else {"input": input}
    done = subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **stdin)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise Error(done.returncode, said or f"stetfs {args[1]} ended with {done.returncode}")
    return done.stdout


class Image:
    """An ext4 volume in a file or on a block device, which is not mounted."""

    def __init__(self, path):
        self.path = os.fspath(path)

    def __repr__(self):
        return f"stetfs.Image({self.path!r})"

    @classmethod
    def make(cls, path, size, *options):
        """Make a volume of ``size`` (bytes, or text such as ``"64M"``) in a new file.

        ``options`` are further options of ``stetfs mkfs``, such as ``"--label", "data"``.
        """
        run("mkfs", path, "--size", str(size), *options)
        return cls(path)

    def at(self, path):
        """Return how the command names ``path`` in this image."""
        return f"{self.path}:{os.fspath(path)}"

    def info(self):
        """Return what the superblock says, as a dictionary."""
        return json.loads(run("info", "--json", self.path))

    def ls(self, path="/"):
        """Return the entries of a directory, each a dictionary (path, kind, mode, size, ...)."""
        return json.loads(run("ls", "--json", self.at(path)))

    def read(self, path):
        """Return the content of a file."""
        return run("cat", self.at(path))

    def write(self, path, content):
        """Make ``content`` (bytes) the whole content of a file. Its directory must be there."""
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            run("cp", file.name, self.at(path))

    def copy_in(self, source, path):
        """Copy a file or a tree of the host into the image, with its attributes (``cp -a``)."""
        run("cp", "-a", source, self.at(path))

    def copy_out(self, path, target):
        """Copy a file or a tree of the image to the host, with its attributes (``cp -a``)."""
        run("cp", "-a", self.at(path), target)

    def mkdir(self, path, parents=False):
        """Make a directory, with ``parents`` also those above it."""
        run("mkdir", *(["-p"] if parents else []), self.at(path))

    def remove(self, path, recursive=False):
        """Remove a file, with ``recursive`` also a directory with what is in it."""
        run("rm", *(["-r"] if recursive else []), self.at(path))

    def recover(self):
        """Recover the journal after a crash. A clean volume is not changed."""
        run("recover", self.path)

    def check(self):
        """Check the volume by e2fsck (of e2fsprogs). Raises ``Error`` if it finds anything."""
        run("fsck", self.path)

    @contextlib.contextmanager
    def mount(self, directory, options=""):
        """Mount the volume on a directory until the block ends: ``with image.mount("mnt"):``.

        ``options`` are those of ``mount -o``, such as ``"scheme=stet"``. Needs /dev/fuse.
        """
        run("mount", *(["-o", options] if options else []), self.path, directory)
        try:
            yield os.fspath(directory)
        finally:
            run("umount", directory)


def tx(directory, *program):
    """Run a program of which everything that it changes below ``directory``, on a mount of stetfs,
    is one transaction; return its output. If the program fails, nothing is changed."""
    return run("tx", directory, "--", *program)


def crash(program, check=None, *options, read=None):
    """Run ``program`` (a list) and cut the power at each moment; return the report.

    ``check`` is a command for sh(1) that ends with 0 if a state is right. ``read`` is one that must
    print of a state what it prints at some moment of the run; without both, each file must be as it
    is at some moment. ``{dir}`` in all stands for the directory of the files. ``options`` are further options of ``stetfs crash``. The report
    is that of ``--json``, and ``report["fails"]`` the list of all findings. Raises ``Error`` if the
    program could not be judged.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "report.json")
        rule = [(f"--{name}", value) for name, value in (("check", check), ("read", read)) if value]
        args = [command(), "crash", "--json", path, *sum(rule, ()), *options, "--", *program]
        done = subprocess.run(
            args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        # 1 says that states fail, which the report has.
        if done.returncode not in (0, 1) or not os.path.exists(path):
            raise Error(done.returncode, done.stderr.decode(errors="replace").strip())
        with open(path, encoding="utf-8") as file:
            report = json.load(file)
    report["fails"] = [found for model in report["models"] for found in model["findings"]]
    report["text"] = done.stdout.decode(errors="replace")
    return report
