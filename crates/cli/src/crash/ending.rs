//! How an exploration ends, and how its parts are reported.

use std::fs;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use stetfs_format::width::must_fit;

use crate::failure::{Failure, Result};

/// Exit code after a signal: the signal's number is added.
pub(super) const EXIT_INTERRUPTED: u8 = 128;

/// How long after the first signal another one means nothing: timeout(1) sends each signal twice,
/// to the program and to its process group.
const SAME_SIGNAL: Duration = Duration::from_secs(1);

/// Exit code: violations were found.
const EXIT_VIOLATIONS: u8 = 1;

/// Returns the exit code of an exploration.
pub(super) fn exit(violations: bool) -> ExitCode {
    ExitCode::from(if violations { EXIT_VIOLATIONS } else { 0 })
}

/// Makes a failure of an explorer's error, which is a chain of contexts.
pub(super) fn told(error: &anyhow::Error) -> Failure {
    Failure::new(format!("{error:#}"))
}

/// Hears signals. The first SIGINT, SIGTERM or SIGHUP ends an exploration once its present state is
/// kept; another one, a second or more later, ends it at once.
pub(super) struct Interrupt {
    pub(super) stop: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    pub(super) fn listen() -> Result<Self> {
        let (stop, signal) = (Arc::default(), Arc::default());
        let ends_at_once = Arc::default();
        // A signal that the starting process had ignored, as nohup(1) does, stays ignored.
        let heard = [SIGINT, SIGTERM, SIGHUP].into_iter();
        let heard: Vec<_> = heard.filter(|number| !is_ignored(*number)).collect();
        for number in &heard {
            flag::register_conditional_default(*number, Arc::clone(&ends_at_once))?;
            flag::register(*number, Arc::clone(&stop))?;
            flag::register_usize(*number, Arc::clone(&signal), must_fit(*number))?;
        }
        let mut signals = Signals::new(heard)?;
        thread::spawn(move || {
            if signals.forever().next().is_some() {
                thread::sleep(SAME_SIGNAL);
                ends_at_once.store(true, Ordering::SeqCst);
            }
        });
        Ok(Self { stop, signal })
    }

    pub(super) fn signal(&self) -> Option<u8> {
        let signal = self.signal.load(Ordering::SeqCst);
        u8::try_from(signal).ok().filter(|signal| *signal > 0)
    }
}

/// True if a signal is ignored: a bit of `SigIgn` in /proc/self/status (proc_pid_status(5)).
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.unwrap_or(0) >> (signal - 1) & 1 == 1
}
