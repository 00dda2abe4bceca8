//! Runs a user's program with a time limit, keeps its output, and leaves none of its processes
//! behind.
//!
//! The processes of a run are known by a variable in their environment ([`RUN`]). This process
//! adopts orphans (as a subreaper), and kills those of a run that is over, even if they have left
//! its group and its session.

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

/// In the environment of everything that a run starts: which run.
const RUN: &str = "STETFS_RUN";

/// The end of what a program says that is kept, in bytes.
const KEPT: u64 = 16 << 10;

/// How often somebody looks whether to stop.
const LOOK: Duration = Duration::from_millis(100);

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// With this exit code.
    Exited(i32),
    /// By this signal.
    Killed(i32),
    /// It was still running after the time that it had, and was killed.
    TimedOut,
    /// The user wanted to stop.
    Stopped,
}

impl End {
    /// In words.
    pub fn text(self) -> String {
        match self {
            Self::Exited(code) => format!("ended with exit code {code}"),
            Self::Killed(signal) => format!("was killed by signal {signal}"),
            Self::TimedOut => "was still running after its time, and was killed".to_owned(),
            Self::Stopped => "was stopped".to_owned(),
        }
    }
}

/// What became of a program.
#[derive(Clone, Debug)]
pub struct Ran {
    /// How it ended.
    pub end: End,
    /// The end of what it said, on standard output and standard error.
    pub output: String,
    /// Processes that it had left behind, and that were killed.
    pub left_behind: usize,
}

/// How a program is run.
pub struct Run<'a> {
    /// How long it may run.
    pub timeout: Duration,
    /// The user wants to stop.
    pub stop: &'a AtomicBool,
    /// Where its standard output goes, instead of to what is kept.
    pub stdout: Option<OwnedFd>,
    /// What to wait for beside its end, and what to do when something comes there.
    pub beside: (Vec<OwnedFd>, &'a dyn Fn()),
    /// Where nothing else is run meanwhile: all that it starts, also if it has thrown away its
    /// environment.
    pub family: Option<&'a Family>,
}

impl<'a> Run<'a> {
    /// For so long.
    pub fn new(timeout: Duration, stop: &'a AtomicBool) -> Self {
        Self {
            timeout,
            stop,
            stdout: None,
            beside: (Vec::new(), &|| {}),
            family: None,
        }
    }

    /// Runs it until it ends, and ends what it leaves behind.
    ///
    /// # Errors
    /// It cannot be started.
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
        // Its end of a pipe is its own alone.
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
        // Of one that has ended itself everything else is left behind, its group too.
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

/// Waits for the end of a process, or for something beside it; whether it has ended.
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
    // A pipe that nobody writes to any more is always ready.
    let ended = fds[0].revents().contains(PollFlags::IN);
    if !ended && fds[1..].iter().any(|fd| fd.revents() == PollFlags::HUP) {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(ended)
}

/// A file for what a program says.
pub(crate) fn memory_file() -> io::Result<File> {
    let fd = rustix::fs::memfd_create("output", rustix::fs::MemfdFlags::CLOEXEC)?;
    Ok(fd.into())
}

/// The end of what was said.
pub(crate) fn tail(said: &mut File) -> io::Result<String> {
    let end = said.seek(SeekFrom::End(0))?;
    said.seek(SeekFrom::Start(end.saturating_sub(KEPT)))?;
    let mut bytes = Vec::new();
    said.take(KEPT).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Ends every process of a run but the one that led it, and gives how many there were.
fn end_all(run: &str, leader: Pid, family: Option<&Family>) -> usize {
    let marker = format!("{RUN}={run}");
    let mut ended = 0;
    // What is killed may have made another one just before; none outlives many rounds.
    for _ in 0..1000 {
        let (mut found, mut children) = (0, Vec::new());
        descendants(std::process::id(), &mut children);
        for pid in children {
            // One that is about to run another program has no environment to be seen.
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

/// Whether a process has the marker in its environment. One that has ended and was not waited for
/// has no environment any more: if it is a child of ours, it is waited for here.
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

/// Whether a process is in the group of another one, and has not ended.
fn is_led(pid: u32, leader: Pid) -> bool {
    let group = leader.as_raw_nonzero().get().unsigned_abs();
    is_other(pid, leader) && Stat::of(pid).is_some_and(|stat| stat.group == group)
}

/// Whether a process is not that one, and has not ended.
fn is_other(pid: u32, leader: Pid) -> bool {
    let leader = leader.as_raw_nonzero().get().unsigned_abs();
    pid != leader && Stat::of(pid).is_some_and(|stat| stat.state != 'Z')
}

/// Orphans that this process has adopted and that have ended; a child that somebody here waits for
/// is in the process group that it was started in, of which it is the leader.
fn is_zombie_of_ours(pid: u32) -> bool {
    let us = std::process::id();
    // Not by getpgrp(2): of a group from outside of a container it gives 0, which is no group.
    let ours = Stat::of(us).map(|stat| stat.group);
    Stat::of(pid).is_some_and(|stat| {
        stat.state == 'Z' && stat.parent == us && stat.group != pid && Some(stat.group) != ours
    })
}

/// All processes below one.
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

/// The words of a command, with the directory in place of `{dir}`. A command that needs a shell
/// gets one.
pub fn shell_or_words(command: &str, dir: &str) -> Vec<String> {
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
        // The second one stays in the group of the program; so does the first for a moment.
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
