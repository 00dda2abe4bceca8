//! Going to the background. The command that the user typed starts the server as a second process,
//! waits until the mount stands, and returns. Until then the server writes its errors to the same
//! terminal.
//!
//! The two talk over the server's standard output. Its last line, [`STANDING`], means that the
//! mount stands; what comes before it is for the user. If the pipe ends without that line, it never
//! will: the server has said why, and the command passes on its exit code.

use std::ffi::OsStr;
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
        /// Its exit code; `None` if a signal ended it.
        code: Option<i32>,
    },
}

/// The command that waits for the mount, if one does.
#[derive(Debug)]
#[must_use]
pub struct Waiting(Option<File>);

impl Waiting {
    /// Nobody waits.
    pub const fn nobody() -> Self {
        Self(None)
    }

    /// Lets the command return: everything that it waits for stands.
    ///
    /// # Errors
    /// The command hears nothing any more.
    pub fn release(self) -> io::Result<()> {
        let Some(null) = self.0 else { return Ok(()) };
        let mut stdout = io::stdout();
        stdout.write_all(STANDING.as_bytes())?;
        stdout.flush()?;
        Ok(rustix::stdio::dup2_stdout(&null)?)
    }
}

/// Starts `server`, which must end up in [`detach`], and returns when its mount stands, with what
/// it has printed for the user.
///
/// # Errors
/// The mount does not stand.
pub fn start(mut server: Command) -> Result<Vec<u8>, StartError> {
    // A server lives long: a lock that the caller's shell has would never be free again.
    let words = server.get_args().map(OsStr::to_string_lossy);
    let named: Vec<u32> = words.flat_map(|word| descriptors(&word)).collect();
    stetfs_sys::inherited::leave_only(&named);
    let mut process = server
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(StartError::Spawn)?;
    let mut said = Vec::new();
    if let Some(mut stdout) = process.stdout.take() {
        let _ = stdout.read_to_end(&mut said);
    }
    if let Some(rest) = said.strip_suffix(STANDING.as_bytes()) {
        return Ok(rest.to_vec());
    }
    let status = process.wait().map_err(StartError::Spawn)?;
    Err(StartError::Failed {
        code: status.code(),
    })
}

/// Returns the numbers of the descriptors that a word of a command line names.
fn descriptors(word: &str) -> Vec<u32> {
    let places = ["/dev/fd/", "/proc/self/fd/"];
    let after = places
        .into_iter()
        .flat_map(|place| word.split(place).skip(1));
    let number = |rest: &str| {
        let end = rest.find(|c: char| !c.is_ascii_digit());
        rest[..end.unwrap_or(rest.len())].parse().ok()
    };
    after.filter_map(number).collect()
}

/// Detaches the server, once the mount stands: leaves the terminal's session and the working
/// directory, and sends further output to `log` or nowhere. [`serve`](crate::serve) lets the
/// command return.
///
/// # Errors
/// `/dev/null` cannot be opened.
pub fn detach(log: Option<File>) -> io::Result<Waiting> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stderr(log.as_ref().unwrap_or(&null))?;
    Ok(Waiting(Some(null)))
}

#[cfg(test)]
mod tests {
    use super::descriptors;

    #[test]
    fn descriptors_are_named_in_words() {
        for (word, named) in [
            ("/dev/fd/101", &[101][..]),
            ("/proc/self/fd/9?offset=512", &[9]),
            ("ro,nvm=/dev/fd/7", &[7]),
            ("/dev/fd/", &[]),
            ("disk.img", &[]),
        ] {
            assert_eq!(descriptors(word), named, "{word}");
        }
    }
}
