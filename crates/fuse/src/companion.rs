//! The companion: a small process beside the server that releases the mount point when the server dies.
//!
//! Without it a killed server leaves a mount point on which every call fails with "Transport endpoint is not
//! connected". The companion waits at the end of a pipe whose other end only the server holds, so that it learns of any
//! death; when the server has not said good-bye, it detaches the mount and says so on the terminal (if there
//! is one) and in the system log. It holds neither the image nor `/dev/fuse`, so it delays nothing.
//!
//! It is this program run again: `main` must call [`run_if_asked`] before anything else.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::FileType;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::mount::Mounted;
use crate::system_log::{self, Severity};

/// Set in the companion's environment.
const ASKED: &str = "STETFS_COMPANION";

/// Whether this program knows how to be a companion: run again without that it would do who knows what.
static KNOWN: AtomicBool = AtomicBool::new(false);

/// The server's end.
#[derive(Debug)]
pub(crate) struct Companion {
    pipe: Option<ChildStdin>,
    process: Child,
}

impl Companion {
    /// Starts the companion. It must be done before the mount, so that it cannot inherit anything of it.
    pub(crate) fn start(image: &Path, dir: &Path) -> io::Result<Self> {
        if !KNOWN.load(Ordering::Relaxed) {
            return Err(io::Error::other("this program does not call run_if_asked"));
        }
        let stderr = if io::stderr().is_terminal() {
            Stdio::inherit()
        } else {
            Stdio::null()
        };
        let mut process = Command::new(std::env::current_exe()?)
            .arg0("stetfs-companion")
            .args([dir, image])
            .arg(std::process::id().to_string())
            .env(ASKED, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()?;
        let pipe = process.stdin.take();
        Ok(Self { pipe, process })
    }

    /// Tells it what to release.
    pub(crate) fn mounted(&mut self, mounted: &Mounted) {
        self.say(&format!("mounted {}\n", mounted.device));
    }

    /// Tells it where else to say what happened: the file that the server's messages go to, if it is one. To be called when the
    /// server has gone to the background.
    pub(crate) fn log_as_we_do(&mut self) {
        let is_file = rustix::fs::fstat(io::stderr())
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file());
        if let (true, Ok(path)) = (is_file, std::fs::read_link("/proc/self/fd/2")) {
            self.say(&format!("log {}\n", path.display()));
        }
    }

    /// Sends it home: there is nothing to release any more.
    pub(crate) fn dismiss(mut self) {
        self.say("done\n");
        self.pipe = None;
        let _ = self.process.wait();
    }

    fn say(&mut self, line: &str) {
        if let Some(Err(e)) = self
            .pipe
            .as_mut()
            .map(|pipe| pipe.write_all(line.as_bytes()))
        {
            tracing::warn!(
                "the companion process is gone ({e}): a crash of the server will leave the mount point behind"
            );
            self.pipe = None;
        }
    }
}

/// In the companion process: does its work and ends the process. In any other: returns at once.
pub fn run_if_asked() {
    KNOWN.store(true, Ordering::Relaxed);
    if std::env::var_os(ASKED).is_none() {
        return;
    }
    let mut args = std::env::args_os().skip(1);
    if let (Some(dir), Some(image), Some(pid)) = (args.next(), args.next(), args.next()) {
        run(
            &PathBuf::from(dir),
            Path::new(&image),
            &pid.to_string_lossy(),
        );
    }
    std::process::exit(0);
}

fn run(dir: &Path, image: &Path, pid: &str) {
    stay();
    let mut said = String::new();
    let _ = io::stdin().read_to_string(&mut said);
    let device = said.lines().find_map(|line| line.strip_prefix("mounted "));
    let (Some(device), false) = (device, said.lines().any(|line| line == "done")) else {
        return;
    };
    let mounted = Mounted {
        dir: dir.to_owned(),
        device: device.to_owned(),
    };
    let message = release(&mounted, image, pid);
    system_log::write(Severity::Error, &message);
    let _ = writeln!(io::stderr(), "stetfs: {message}");
    let log = said.lines().find_map(|line| line.strip_prefix("log "));
    if let Some(Ok(mut log)) = log.map(|path| File::options().append(true).open(path)) {
        let _ = writeln!(log, "stetfs: {message}");
    }
}

/// Survives what ends the server: signals to its process group, to its terminal, and to everything of its name.
fn stay() {
    let _ = rustix::process::setsid();
    let _ = std::env::set_current_dir("/");
    let _ = rustix::thread::set_name(c"mount-companion");
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        // Caught, and nothing done about it.
        let _ = signal_hook::flag::register(signal, Arc::default());
    }
}

/// Detaches the mount and says what happened.
fn release(mounted: &Mounted, image: &Path, pid: &str) -> String {
    let what = format!(
        "the server (process {pid}) of {} on {} died",
        image.display(),
        mounted.dir.display()
    );
    let advice = "everything that was fsynced is in the image; mount it again to recover";
    if !mounted.stands() {
        return format!("{what}; {advice}");
    }
    match mounted.unmount(true) {
        Ok(()) => format!("{what}; the mount point was released; {advice}"),
        Err(e) => format!("{what}, and its mount point could not be released: {e}; {advice}"),
    }
}
