//! Runs a user's program with a time limit, keeps its output, and leaves none of its processes
//! behind.
//!
//! A variable in the environment ([`RUN`]) marks the processes of a run. This process adopts
//! orphans, as a subreaper. When a run is over, it kills the marked processes, even those that left
//! the process group and the session.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};

use crate::family::{Family, Stat, children};

/// The environment variable that names the run.
const RUN: &str = "STETFS_RUN";

/// Bytes of output to keep, from the end.
const KEPT: u64 = 16 << 10;

/// How often the loop looks at `stop`.
const LOOK: Duration = Duration::from_millis(100);

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// It exited with this code.
    Exited(i32),
    /// This signal killed it.
    Killed(i32),
    /// It was still running when its time was over, and was killed.
    TimedOut,
    /// The user stopped it.
    Stopped,
    /// It showed what no moment of the run shows.
    NeverShown,
    /// It showed what the run shows only before a promise.
    TooOld,
}

impl End {
    /// The end in words, behind the program's name.
    pub fn text(self) -> String {
        match self {
            Self::Exited(code) => format!("ended with exit code {code}"),
            Self::Killed(signal) => format!("was killed by signal {signal}"),
            Self::TimedOut => "was still running when its time was over, and was killed".to_owned(),
            Self::Stopped => "was stopped".to_owned(),
            Self::NeverShown => "found what no moment of the run shows".to_owned(),
            Self::TooOld => "found what the run shows only before a promise".to_owned(),
        }
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Ran {
    /// How it ended.
    pub end: End,
    /// The last 16 KiB of standard output and standard error.
    pub output: String,
    /// How many processes it left behind. They were killed.
    pub left_behind: usize,
}

/// How a program is run.
pub struct Run<'a> {
    /// How long the program may run.
    pub timeout: Duration,
    /// Set when the user wants to stop.
    pub stop: &'a AtomicBool,
    /// Where standard output goes. `None`: it is kept with standard error.
    pub stdout: Option<OwnedFd>,
    /// Descriptors to poll beside the program's end, and the function to call when one is ready.
    pub beside: (Vec<OwnedFd>, &'a dyn Fn()),
    /// Set where no other program runs meanwhile: the run then includes processes that have dropped
    /// their environment.
    pub family: Option<&'a Family>,
}

impl<'a> Run<'a> {
    /// A run with this time limit.
    pub fn new(timeout: Duration, stop: &'a AtomicBool) -> Self {
        Self {
            timeout,
            stop,
            stdout: None,
            beside: (Vec::new(), &|| {}),
            family: None,
        }
    }

    /// Runs the program until it ends, and kills the processes that it leaves behind.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn run(self, mut command: Command) -> io::Result<Ran> {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let run = format!("{}.{number}", std::process::id());
        let mut said = memory_file()?;
        let stdout = match self.stdout {
            Some(fd) => Stdio::from(fd),
            None => said.try_clone()?.into(),
        };
        let mut child = command
            .env(RUN, &run)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(said.try_clone()?)
            .spawn()?;
        // Closes our copy of the program's end of the pipe.
        drop(command);
        let pid = Pid::from_child(&child);
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        let until = Instant::now().checked_add(self.timeout);
        let mut end = None;
        loop {
            let left = until.map_or(LOOK, |until| {
                until.saturating_duration_since(Instant::now())
            });
            if left.is_zero() {
                end = Some(End::TimedOut);
            } else if self.stop.load(Ordering::Relaxed) {
                end = Some(End::Stopped);
            }
            if end.is_some() || wait(&pidfd, &self.beside.0, left.min(LOOK))? {
                break;
            }
            (self.beside.1)();
        }
        // If the program ended by itself, everything else was left behind, its group too.
        let mut left_behind = match end {
            None => end_all(&run, pid, self.family),
            Some(_) => 0,
        };
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        let status = child.wait()?;
        left_behind += end_all(&run, pid, self.family);
        let end = end.unwrap_or_else(|| match (status.code(), status.signal()) {
            (Some(code), _) => End::Exited(code),
            (None, signal) => End::Killed(signal.unwrap_or(0)),
        });
        Ok(Ran {
            end,
            output: tail(&mut said)?,
            left_behind,
        })
    }
}

/// Waits at most `most` for the end of the process or a ready descriptor. Returns true if the
/// process has ended.
fn wait(pidfd: &OwnedFd, beside: &[OwnedFd], most: Duration) -> io::Result<bool> {
    let all = std::iter::once(pidfd).chain(beside);
    let mut fds: Vec<PollFd<'_>> = all
        .map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN))
        .collect();
    let most = Timespec::try_from(most).map_err(io::Error::other)?;
    match rustix::event::poll(&mut fds, Some(&most)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(e) => return Err(e.into()),
    }
    // A pipe whose writers are gone is always ready: without the sleep, the loop would spin.
    let ended = fds[0].revents().contains(PollFlags::IN);
    if !ended && fds[1..].iter().any(|fd| fd.revents() == PollFlags::HUP) {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(ended)
}

/// A file in memory for a program's output.
pub(crate) fn memory_file() -> io::Result<File> {
    let fd = rustix::fs::memfd_create("output", rustix::fs::MemfdFlags::CLOEXEC)?;
    Ok(fd.into())
}

/// Returns the last [`KEPT`] bytes.
pub(crate) fn tail(said: &mut File) -> io::Result<String> {
    let end = said.seek(SeekFrom::End(0))?;
    said.seek(SeekFrom::Start(end.saturating_sub(KEPT)))?;
    let mut bytes = Vec::new();
    said.take(KEPT).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Kills every process of a run but its leader. Returns how many there were.
fn end_all(run: &str, leader: Pid, family: Option<&Family>) -> usize {
    let marker = format!("{RUN}={run}");
    let mut ended = 0;
    // A process may have forked just before it was killed, so this repeats until none is found.
    for _ in 0..1000 {
        let (mut found, mut children) = (0, Vec::new());
        descendants(std::process::id(), &mut children);
        for pid in children {
            // During an exec, a process has no environment to read.
            let is_in = family.is_some_and(|family| family.has(pid) && is_other(pid, leader));
            if !is_of(pid, &marker) && !is_led(pid, leader) && !is_in {
                continue;
            }
            let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
                continue;
            };
            found += 1;
            let _ = rustix::process::kill_process(pid, Signal::KILL);
            let _ = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG);
        }
        if found == 0 {
            break;
        }
        ended = ended.max(found);
        std::thread::sleep(Duration::from_millis(1));
    }
    ended
}

/// True if a process has the marker in its environment. A zombie has no environment: if it is our
/// child, it is reaped here.
fn is_of(pid: u32, marker: &str) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    if environment.is_empty() && is_zombie_of_ours(pid) {
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            let _ = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG);
        }
        return false;
    }
    let mut words = environment.split(|byte| *byte == 0);
    words.any(|word| word == marker.as_bytes())
}

/// True if a process is in the group of `leader`, is not `leader`, and has not ended.
fn is_led(pid: u32, leader: Pid) -> bool {
    let group = leader.as_raw_nonzero().get().unsigned_abs();
    is_other(pid, leader) && Stat::of(pid).is_some_and(|stat| stat.group == group)
}

/// True if a process is not `leader` and has not ended.
fn is_other(pid: u32, leader: Pid) -> bool {
    let leader = leader.as_raw_nonzero().get().unsigned_abs();
    pid != leader && Stat::of(pid).is_some_and(|stat| stat.state != 'Z')
}

/// True for orphans that this process has adopted and that have ended. A child that this process
/// started leads a group of its own, and another thread waits for it.
fn is_zombie_of_ours(pid: u32) -> bool {
    let us = std::process::id();
    // Not getpgrp(2): it gives 0 for a group from outside of a container.
    let ours = Stat::of(us).map(|stat| stat.group);
    Stat::of(pid).is_some_and(|stat| {
        stat.state == 'Z' && stat.parent == us && stat.group != pid && Some(stat.group) != ours
    })
}

/// Adds all descendants of a process.
fn descendants(pid: u32, found: &mut Vec<u32>) {
    let mut below = Vec::new();
    children(pid, &mut below);
    for child in below {
        if !found.contains(&child) {
            found.push(child);
            descendants(child, found);
        }
    }
}

/// Returns the words of a command, with the directory in place of `{dir}`. A command with shell
/// syntax becomes `sh -c`.
pub(crate) fn shell_or_words(command: &str, dir: &str) -> Vec<String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || " ./_-+=:,@%".contains(c);
    let bare = command.replace("{dir}", "");
    let starts_plain = !command.trim_start().starts_with('=')
        && !command
            .split_whitespace()
            .next()
            .unwrap_or("")
            .contains('=');
    if bare.chars().all(is_plain) && starts_plain {
        let words = command.split_whitespace();
        return words.map(|word| word.replace("{dir}", dir)).collect();
    }
    let quoted = format!("'{}'", dir.replace('\'', "'\\''"));
    let line = command.replace("{dir}", &quoted);
    vec!["/bin/sh".to_owned(), "-c".to_owned(), line]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, timeout: Duration) -> Ran {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        let stop = AtomicBool::new(false);
        Run::new(timeout, &stop).run(command).unwrap()
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn the_end_and_the_words_are_kept() {
        let ran = sh("echo out; echo err >&2; exit 3", LONG);
        assert_eq!(
            (ran.end, ran.output.as_str()),
            (End::Exited(3), "out\nerr\n")
        );
        assert_eq!(sh("kill -9 $$", LONG).end, End::Killed(9));
    }

    #[test]
    fn a_program_that_never_ends_is_ended_with_all_that_it_has_started() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let script = format!(
            "setsid sh -c 'echo $$ > {0}; sleep 1000' & while :; do sleep 0.01; done",
            file.display()
        );
        let ran = sh(&script, Duration::from_millis(500));
        assert_eq!(ran.end, End::TimedOut);
        let pid = fs::read_to_string(file).unwrap();
        let there = fs::read_to_string(format!("/proc/{}/environ", pid.trim()));
        assert!(there.is_err(), "process {pid} is still there");
    }

    #[test]
    fn a_daemon_is_ended_and_counted() {
        // The second one stays in the program's group. The first is there too, until its setsid(2).
        for script in ["setsid sleep 1000 & exit 0", "sleep 1000 & exit 0"] {
            let ran = sh(script, LONG);
            assert_eq!((ran.end, ran.left_behind), (End::Exited(0), 1), "{script}");
        }
    }

    #[test]
    fn a_shell_only_where_it_is_needed() {
        assert_eq!(
            shell_or_words("./check -d {dir}/x", "/a b"),
            ["./check", "-d", "/a b/x"]
        );
        let line = "test -f {dir}/x && true";
        assert_eq!(shell_or_words(line, "/a b")[2], "test -f '/a b'/x && true");
        assert_eq!(shell_or_words("X=1 env", "/d")[0], "/bin/sh");
    }
}
