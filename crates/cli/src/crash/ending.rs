//! How an exploration ends, and how its parts are told.

use std::fs;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use stetfs_format::width::must_fit;

use crate::failure::{Failure, Result};

/// It was interrupted, by a signal whose number is added.
pub(super) const EXIT_INTERRUPTED: u8 = 128;

/// Violations were found.
const EXIT_VIOLATIONS: u8 = 1;

/// The exit code of what was explored.
pub(super) fn exit(violations: bool) -> ExitCode {
    ExitCode::from(if violations { EXIT_VIOLATIONS } else { 0 })
}

/// The lab's errors are chains of contexts.
pub(super) fn told(error: &anyhow::Error) -> Failure {
    Failure::new(format!("{error:#}"))
}

/// The first SIGINT, SIGTERM or SIGHUP ends an exploration when what is at hand is kept, the second
/// at once.
pub(super) struct Interrupt {
    pub(super) stop: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    pub(super) fn listen() -> Result<Self> {
        let (stop, signal) = (Arc::default(), Arc::default());
        // What whoever started this has it ignore, such as nohup(1), stays ignored.
        let heard = [SIGINT, SIGTERM, SIGHUP].into_iter();
        for number in heard.filter(|number| !is_ignored(*number)) {
            flag::register_conditional_default(number, Arc::clone(&stop))?;
            flag::register(number, Arc::clone(&stop))?;
            flag::register_usize(number, Arc::clone(&signal), must_fit(number))?;
        }
        Ok(Self { stop, signal })
    }

    pub(super) fn signal(&self) -> Option<u8> {
        let signal = self.signal.load(Ordering::SeqCst);
        u8::try_from(signal).ok().filter(|signal| *signal > 0)
    }
}

/// Whether a signal is ignored: a bit of `SigIgn` in /proc/self/status (proc_pid_status(5)).
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.unwrap_or(0) >> (signal - 1) & 1 == 1
}

pub(super) fn indented(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(|line| format!("    {line}")).collect();
    lines.join("\n")
}
