//! The exit codes of a command that runs another one, as env(1) has them.

use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::io::Errno;

use crate::failure::{self, Failure};

/// What was to be done around the command failed: the reason is on standard error.
pub(crate) const EXIT_FAILED: u8 = 125;
/// The command cannot be run.
const EXIT_NOT_RUN: u8 = 126;
/// There is no such command.
const EXIT_NOT_FOUND: u8 = 127;
/// A signal ended the command: the signal's number is added.
pub(crate) const EXIT_SIGNAL: u8 = 128;

/// Makes a failure that is not the command's.
pub(crate) fn failed(what: impl Into<String>) -> Failure {
    Failure::new(what).exit(EXIT_FAILED)
}

/// Tells a failure without an exit code of its own from one of the command.
pub(crate) fn around(failure: Failure) -> Failure {
    match failure.code {
        failure::EXIT_FAILED => failure.exit(EXIT_FAILED),
        _ => failure,
    }
}

/// Explains that the command with these words was not run.
pub(crate) fn not_run(words: &[impl AsRef<OsStr>], e: &io::Error) -> Failure {
    let code = match e.kind() {
        ErrorKind::NotFound => EXIT_NOT_FOUND,
        _ => EXIT_NOT_RUN,
    };
    let errno = e.raw_os_error().map(Errno::from_raw_os_error);
    let why = errno.map_or_else(|| e.to_string(), in_words);
    Failure::new(format!("{}: {why}", words[0].as_ref().display())).exit(code)
}

/// Returns the exit code that passes on how the command ended.
pub(crate) fn code(status: ExitStatus) -> u8 {
    let number = |n: i32| u8::try_from(n).unwrap_or(EXIT_FAILED);
    match (status.code(), status.signal()) {
        (Some(code), _) => number(code),
        (None, signal) => EXIT_SIGNAL.saturating_add(number(signal.unwrap_or(0))),
    }
}

/// Returns an errno in words.
pub(crate) fn in_words(e: Errno) -> String {
    let text = io::Error::from(e).to_string();
    let end = text.find(" (os error").unwrap_or(text.len());
    text[..end].to_owned()
}
