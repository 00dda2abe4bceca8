//! Runs the command and the programs that judge it.

use std::ffi::OsStr;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The output of a process, and how it ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    fn of(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Asserts success; returns standard output.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:#?}");
        self.out
    }

    /// Asserts this exit code, and that standard error has all these words. Only results may go to
    /// standard output.
    #[track_caller]
    pub(crate) fn fails(self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "{self:#?}");
        for word in words {
            assert!(self.err.contains(word), "no \"{word}\" in {self:#?}");
        }
        assert!(!self.err.contains("panicked"), "{self:#?}");
    }
}

/// The program under test.
pub(crate) const STETFS: &str = env!("CARGO_BIN_EXE_stetfs");

fn run_program<A: AsRef<OsStr> + Debug>(program: impl AsRef<OsStr>, args: &[A]) -> Ran {
    let path = format!(
        "{}:/usr/local/sbin:/usr/sbin:/sbin",
        std::env::var("PATH").unwrap_or_default()
    );
    let output = Command::new(&program)
        .args(args)
        .env("PATH", path)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|e| panic!("{:?}: {e}", program.as_ref()));
    Ran::of(output)
}

/// Runs `stetfs ARGS`.
pub(crate) fn stetfs<A: AsRef<OsStr> + Debug>(args: &[A]) -> Ran {
    run_program(STETFS, args)
}

/// Runs another program.
pub(crate) fn tool<A: AsRef<OsStr> + Debug>(program: impl AsRef<OsStr>, args: &[A]) -> Ran {
    run_program(program, args)
}

/// Runs a program for at most a minute.
pub(crate) fn bounded(program: &str, args: &[&str]) -> Ran {
    let mut all = vec!["--kill-after=5", "60", program];
    all.extend(args);
    tool("timeout", &all)
}

/// True if a program is installed; otherwise says that the test is skipped.
pub(crate) fn has(program: &str) -> bool {
    let found = tool("sh", &["-c", &format!("command -v {program}")]).code == 0;
    if !found {
        eprintln!("SKIPPED: {program} is not installed");
    }
    found
}

/// Calls umount(8) until nobody uses the mount.
#[track_caller]
pub(crate) fn unmount(dir: &str) {
    unmount_by("umount", &[dir]);
}

/// Calls a program that unmounts until nobody uses the mount: each process that another test starts
/// has copies of this one's descriptors until it is another program, and so may have a file of the
/// mount after the test has closed it.
#[track_caller]
pub(crate) fn unmount_by(program: &str, args: &[&str]) {
    wait_until(&format!("{program} {args:?}"), || {
        let ran = bounded(program, args);
        assert!(ran.code == 0 || ran.err.contains("busy"), "{ran:#?}");
        ran.code == 0
    });
}

/// Waits until `is_so` is true, at most two minutes.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !is_so() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A directory for one test.
pub(crate) struct Lab {
    dir: tempfile::TempDir,
}

impl Lab {
    pub(crate) fn new() -> Self {
        Self {
            dir: tempfile::tempdir().expect("a temporary directory"),
        }
    }

    /// Makes it in memory, if there is a file system for that.
    pub(crate) fn in_memory() -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        Self {
            dir: dir.expect("a temporary directory"),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn str(&self, name: &str) -> String {
        self.path(name)
            .to_str()
            .expect("a path in UTF-8")
            .to_owned()
    }

    /// Returns `IMAGE:/path`.
    pub(crate) fn place(&self, path: &str) -> String {
        format!("{}:{path}", self.str("disk.img"))
    }

    /// Makes disk.img with `stetfs mkfs` and returns its path.
    pub(crate) fn volume(&self, args: &[&str]) -> String {
        self.volume_named("disk.img", args)
    }

    /// Makes a volume of this name with `stetfs mkfs` and returns its path.
    pub(crate) fn volume_named(&self, name: &str, args: &[&str]) -> String {
        let image = self.str(name);
        let mut all = vec!["mkfs", &image, "--size", "16M"];
        all.extend(args);
        stetfs(&all).ok();
        image
    }
}

/// Asserts that e2fsck has nothing to say.
#[track_caller]
pub(crate) fn assert_clean(image: impl AsRef<Path>) {
    let ran = tool("e2fsck", &[OsStr::new("-fn"), image.as_ref().as_os_str()]);
    assert_eq!(ran.code, 0, "{ran:#?}");
}

/// Runs one debugfs command on an image.
pub(crate) fn debugfs(image: &str, command: &str) -> String {
    tool("debugfs", &["-R", command, image]).ok()
}

/// Runs debugfs commands that change the image.
pub(crate) fn debugfs_write(image: &str, commands: &[&str]) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let script = dir.path().join("script");
    std::fs::write(&script, commands.join("\n") + "\n").expect("the script");
    let ran = tool(
        "debugfs",
        &[
            OsStr::new("-w"),
            OsStr::new("-f"),
            script.as_os_str(),
            OsStr::new(image),
        ],
    );
    assert_eq!(ran.code, 0, "{ran:#?}");
    // debugfs goes on after an error; then standard error has more than its version.
    assert!(ran.err.lines().count() <= 1, "{ran:#?}");
}

/// Returns a field of dumpe2fs -h.
pub(crate) fn dumpe2fs(image: &str, field: &str) -> String {
    let out = tool("dumpe2fs", &["-h", image]).ok();
    let line = out
        .lines()
        .find_map(|l| l.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {field} in {out}"))
        .trim()
        .to_owned()
}

pub(crate) fn sha256(path: impl AsRef<Path>) -> String {
    tool("sha256sum", &["-b", path.as_ref().to_str().expect("UTF-8")]).ok()[..64].to_owned()
}

/// Parses JSON that a command printed.
#[track_caller]
pub(crate) fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// Random numbers, the same for the same seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, below: u64) -> u64 {
        // Knuth's MMIX generator.
        let next = self.0.wrapping_mul(6364136223846793005);
        self.0 = next.wrapping_add(1442695040888963407);
        (self.0 >> 33) % below
    }
}
