//! Going to the background: the command that the user typed starts the server as a second process,
//! waits until the mount stands, and returns; the server says its errors on the same terminal until
//! then and is on its own afterwards.
//!
//! The two talk over the server's standard output: one line, [`STANDING`], means that the mount
//! stands. The end of the pipe without that line means that it never will; the server has then said
//! why and its exit code is passed on.

use std::fs::File;
use std::io::{self, Read, Write};
use std::process::{Command, Stdio};

const STANDING: &str = "mounted\n";

/// Why no server runs in the background.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The server process could not be started.
    #[error("the server process cannot be started: {0}")]
    Spawn(io::Error),
    /// The server gave up, and has said why.
    #[error("the mount failed")]
    Failed {
        /// Its exit code; none when a signal ended it.
        code: Option<i32>,
    },
}

/// Starts `server`, which must end up in [`detach`], and returns when its mount stands.
///
/// # Errors
/// It did not come to that.
pub fn start(mut server: Command) -> Result<(), StartError> {
    let mut process = server
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(StartError::Spawn)?;
    let mut said = Vec::new();
    if let Some(mut stdout) = process.stdout.take() {
        let _ = stdout.read_to_end(&mut said);
    }
    if said.ends_with(STANDING.as_bytes()) {
        return Ok(());
    }
    let status = process.wait().map_err(StartError::Spawn)?;
    Err(StartError::Failed {
        code: status.code(),
    })
}

/// In the server, once the mount stands: leaves the terminal's session and the working directory,
/// sends further output to `log` or nowhere, and lets the waiting command return.
///
/// # Errors
/// `/dev/null` cannot be opened.
pub fn detach(log: Option<File>) -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stderr(log.as_ref().unwrap_or(&null))?;
    let mut stdout = io::stdout();
    stdout.write_all(STANDING.as_bytes())?;
    stdout.flush()?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}
