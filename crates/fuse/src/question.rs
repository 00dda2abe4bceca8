//! Asks whether a mount's server answers, in a process of its own.
//!
//! A process that asks a stopped or hanging server can be neither interrupted nor killed before
//! there is an answer. So a second process asks: this program, run again ([`crate::run_if_asked`]).
//! It is left behind when it takes too long, and ends with the answer or with the connection.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The variable in the asking process's environment.
const ASKED: &str = "STETFS_QUESTION";

/// How often we look for the answer.
const POLL: Duration = Duration::from_millis(10);

/// A question that is under way.
#[derive(Debug)]
pub struct Question(Child);

impl Question {
    /// Asks the server of the mount on a directory.
    ///
    /// # Errors
    /// No process could be started.
    pub fn ask(dir: &Path) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg0("stetfs-question").arg(dir).env(ASKED, "1");
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null());
        quiet.stderr(Stdio::null()).spawn().map(Self)
    }

    /// Waits for the answer, at most for `within`. Returns whether there is one; "the server is
    /// dead" is one too.
    pub fn is_answered(&mut self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        loop {
            match self.0.try_wait() {
                Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL),
                Ok(ended) => return ended.is_some(),
                // The asking process is gone.
                Err(_) => return true,
            }
        }
    }
}

/// Asks and ends the process, if it is the asking one. In any other process: does nothing.
pub(crate) fn run_if_asked() {
    if std::env::var_os(ASKED).is_none() {
        return;
    }
    if let Some(dir) = std::env::args_os().nth(1) {
        let _ = rustix::fs::statfs(Path::new(&dir));
    }
    std::process::exit(0);
}
