//! Decides whose a request is: the program's or a stranger's.
//!
//! The program is every process that this process has started, with all descendants, in whatever
//! group, session, user or pid namespace. This process adopts orphans ([`crate::run`]), so a daemon
//! stays below it. A request names the thread that made it. This thread waits for the answer, so
//! `/proc` still shows it and its parents. A cgroup of the program's own would need a privilege. A
//! mount namespace of its own would not keep out sync(2), which goes to every mount.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::fs;

use parking_lot::Mutex;

thread_local! {
    /// Who asked for what this thread does; nobody, where the server does it by itself.
    static ASKED_BY: Cell<Option<u32>> = const { Cell::new(None) };
}

/// A request of this thread (0: of nobody whom the kernel can name) is worked on by this thread of
/// the server.
pub fn asked_by(thread: u32) {
    ASKED_BY.set(Some(thread));
}

/// The thread whose request is worked on here; 0 where it is nobody's.
pub fn asking() -> u32 {
    ASKED_BY.get().unwrap_or(0)
}

/// Whose a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The program's.
    Program,
    /// Somebody else's.
    Stranger,
    /// The kernel's own, on behalf of whoever has the file open: pages of a mapping that it writes
    /// back, what a loop device or io_submit(2) has a kernel thread do. Who waits for nobody's
    /// answer may also have ended by now.
    Kernel,
    /// A process that has no number here, being outside of this pid namespace; or the kernel's own,
    /// for which it gives no number either.
    Nameless,
}

/// In /proc/PID/stat: a thread of the kernel (PF_KTHREAD, include/linux/sched.h).
const KERNEL_THREAD: u64 = 0x0020_0000;

/// How often the way up is tried: a parent on it may end meanwhile.
const TRIES: usize = 8;

/// What descends from this process, but for what did so before.
#[derive(Debug)]
pub struct Family {
    us: u32,
    /// Children that are no part of the program, such as the companion of the mount.
    apart: HashSet<u32>,
    /// Threads by their numbers, with when they began, in ticks of the kernel: numbers are used
    /// again.
    known: Mutex<HashMap<u32, (u64, Whose)>>,
}

impl Family {
    /// Whatever this process starts from now on.
    pub fn from_now_on() -> Self {
        let mut apart = Vec::new();
        children(std::process::id(), &mut apart);
        Self {
            us: std::process::id(),
            apart: apart.into_iter().collect(),
            known: Mutex::default(),
        }
    }

    /// Whose the request is that this thread works on.
    pub fn whose(&self) -> Whose {
        match ASKED_BY.get() {
            // The server does what it was asked for before.
            None => Whose::Program,
            Some(0) => Whose::Nameless,
            Some(thread) => self.of(thread),
        }
    }

    /// Whether a process is of it.
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

    /// Whether the way up from a thread leads to this process.
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

/// What /proc/PID/stat says, for processes and for threads (proc_pid_stat(5)).
pub(crate) struct Stat {
    /// How it is: `Z`, it has ended and nobody has waited for it.
    pub(crate) state: char,
    /// The parent of its process.
    pub(crate) parent: u32,
    /// The process group.
    pub(crate) group: u32,
    flags: u64,
    /// When it began, in ticks since the system did.
    began: u64,
}

impl Stat {
    /// None: there is no such process, or it cannot be seen.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name may have anything in it, and ends with the last parenthesis.
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

/// The children of a process.
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

    /// A child that waits, and the number of a process that it names.
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
        // The process between it and this one has ended.
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
