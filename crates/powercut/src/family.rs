//! Decides whose a request is: the program's or a stranger's.
//!
//! The program is every process that this process has started, with all descendants, in any group,
//! session, user or pid namespace. This process adopts orphans ([`crate::run`]), so that a daemon
//! stays below it. A request names the thread that made it. That thread waits for the answer, so
//! that `/proc` still shows it and its parents.
//!
//! A cgroup for the program would need a privilege. A mount namespace for it would not keep out
//! sync(2), which goes to every mount.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::fs;

use parking_lot::Mutex;

thread_local! {
    /// The thread whose request this thread serves. `None`: the server works by itself.
    static ASKED_BY: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Notes that this thread now serves a request of `thread`. 0: the kernel names nobody.
pub fn asked_by(thread: u32) {
    ASKED_BY.set(Some(thread));
}

/// Returns the thread whose request this thread serves. 0: nobody's.
pub fn asking() -> u32 {
    ASKED_BY.get().unwrap_or(0)
}

/// Whose a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The program's.
    Program,
    /// That of another process on the machine.
    Stranger,
    /// The kernel's own, for a process that has the file open: it writes back pages of a mapping,
    /// or a kernel thread works for a loop device or io_submit(2). Or a process that did not wait
    /// for the answer and has ended.
    Kernel,
    /// That of a process outside of this pid namespace, which has no number here. Or the kernel's
    /// own without a number.
    Nameless,
}

/// The flag PF_KTHREAD in /proc/PID/stat: a kernel thread (include/linux/sched.h).
const KERNEL_THREAD: u64 = 0x0020_0000;

/// How often to walk up to the ancestors: one may end during the walk.
const TRIES: usize = 8;

/// The descendants of this process, except those that were there before.
#[derive(Debug)]
pub struct Family {
    us: u32,
    /// Children that are not the program, such as the companion of the mount.
    apart: HashSet<u32>,
    /// Known threads. Each has its start time in ticks, since numbers are used again.
    known: Mutex<HashMap<u32, (u64, Whose)>>,
}

impl Family {
    /// Counts every process that this process starts from now on.
    pub(crate) fn from_now_on() -> Self {
        let mut apart = Vec::new();
        children(std::process::id(), &mut apart);
        Self {
            us: std::process::id(),
            apart: apart.into_iter().collect(),
            known: Mutex::default(),
        }
    }

    /// Returns whose request this thread serves.
    pub fn whose(&self) -> Whose {
        match ASKED_BY.get() {
            // The server does late what the program asked for.
            None => Whose::Program,
            Some(0) => Whose::Nameless,
            Some(thread) => self.of(thread),
        }
    }

    /// True if a process belongs to the program.
    pub fn has(&self, pid: u32) -> bool {
        self.of(pid) == Whose::Program
    }

    fn of(&self, thread: u32) -> Whose {
        let Some(stat) = Stat::of(thread) else {
            return Whose::Kernel;
        };
        if stat.flags & KERNEL_THREAD != 0 {
            return Whose::Kernel;
        }
        if let Some((began, whose)) = self.known.lock().get(&thread)
            && *began == stat.began
        {
            return *whose;
        }
        let whose = if self.descends(thread) {
            Whose::Program
        } else {
            Whose::Stranger
        };
        self.known.lock().insert(thread, (stat.began, whose));
        whose
    }

    /// True if this process is an ancestor of a thread, and not through a child that is `apart`.
    fn descends(&self, thread: u32) -> bool {
        for _ in 0..TRIES {
            let mut at = thread;
            while let Some(stat) = Stat::of(at) {
                match stat.parent {
                    parent if parent == self.us => return !self.apart.contains(&at),
                    0 | 1 => return false,
                    parent => at = parent,
                }
            }
        }
        false
    }
}

/// Fields of /proc/PID/stat, for processes and threads (proc_pid_stat(5)).
pub(crate) struct Stat {
    /// `Z`: it has ended and nobody has waited for it.
    pub(crate) state: char,
    /// The parent process.
    pub(crate) parent: u32,
    /// The process group.
    pub(crate) group: u32,
    flags: u64,
    /// Its start, in ticks since the system booted.
    began: u64,
}

impl Stat {
    /// Returns `None` if the process does not exist or cannot be seen.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name may contain anything. The last parenthesis ends it.
        let (_, rest) = stat.rsplit_once(") ")?;
        let words: Vec<&str> = rest.split(' ').collect();
        let number = |field: usize| words.get(field - 3)?.parse().ok();
        Some(Self {
            state: words.first()?.chars().next()?,
            parent: u32::try_from(number(4)?).ok()?,
            group: u32::try_from(number(5)?).ok()?,
            flags: number(9)?,
            began: number(22)?,
        })
    }
}

/// Adds the children of a process.
pub(crate) fn children(pid: u32, found: &mut Vec<u32>) {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return;
    };
    for thread in threads.flatten() {
        let list = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        found.extend(
            list.split_whitespace()
                .filter_map(|child| child.parse::<u32>().ok()),
        );
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// Starts a script that waits and prints the number of a process.
    fn says(script: &str) -> (Child, u32) {
        let mut child = Command::new("/bin/sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = child.stdout.as_mut().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        let pid = line.trim().parse().unwrap();
        (child, pid)
    }

    #[test]
    fn a_daemon_is_of_the_family_and_what_was_there_before_is_not() {
        let us = rustix::process::getpid();
        rustix::process::set_child_subreaper(Some(us)).unwrap();
        let (before, older) = says("echo $$; exec cat");
        let family = Family::from_now_on();
        let (child, own) = says("echo $$; exec cat");
        // The daemon's parent has ended, so that it is adopted.
        let (mut between, daemon) = says("setsid sh -c 'echo $$; exec sleep 60' & exec cat");
        between.kill().unwrap();
        between.wait().unwrap();
        assert_eq!(
            [older, own, daemon, 1, std::process::id()].map(|pid| family.of(pid)),
            [
                Whose::Stranger,
                Whose::Program,
                Whose::Program,
                Whose::Stranger,
                Whose::Stranger,
            ]
        );
        for mut child in [before, child] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let daemon = rustix::process::Pid::from_raw(daemon.try_into().unwrap()).unwrap();
        rustix::process::kill_process(daemon, rustix::process::Signal::KILL).unwrap();
        rustix::process::waitpid(Some(daemon), rustix::process::WaitOptions::empty()).unwrap();
    }
}
