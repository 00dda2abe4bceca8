//! The companion: a small process beside the server that deals with the mount from outside.
//!
//! *When the server dies.* A killed server leaves a mount point on which every call fails with
//! "Transport endpoint is not connected". The companion reads from a pipe whose other end only the
//! server holds, so it learns of any death. If the server has not said good-bye, the companion
//! detaches the mount and reports it on the terminal (if there is one) and in the system log.
//!
//! *When the server hangs.* If a server is stopped, or waits for something that never comes, all
//! users of the mount wait, and sync(1) of the whole machine does too. So while requests wait, the
//! companion asks a question of its own, and reports if there is no answer for [`SILENCE`]. With
//! `abort_hung=` it aborts the connection in the end, and kills the server if requests wait even
//! then. (A kernel that can aborts too, for each single request.)
//!
//! *For the server.* A server that unmounts or syncs its own mount waits in the kernel for its own
//! answer. If it is killed just then, it never ends: the thread that waits keeps `/dev/fuse` open,
//! so the kernel goes on waiting for it. So the server asks the companion to do that.
//!
//! The pipe carries lines. The server says `abort_hung SECONDS`, `mounted DEVICE`, `log PATH`,
//! `leave` (release nothing), `done`; and it asks `sync`, `unmount`, `unmount lazy`, each answered
//! by `ok`, `busy` or `failed REASON`. The companion holds neither the image nor `/dev/fuse`, so it
//! delays nothing. It is this program run again: `main` must call [`run_if_asked`] before anything
//! else.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::FileType;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::connection::Connection;
use crate::mount::Mounted;
use crate::mount::error::MountError;
use crate::mountinfo;
use crate::question;
use crate::survive::{Heir, Succeeded, Succession};
use crate::system_log::{self, Severity};
use crate::wire::ring;

/// Set in the companion's environment.
const ASKED: &str = "STETFS_COMPANION";

/// The line that ends the companion.
pub(crate) const DONE: &str = "done\n";

/// True if this program can be a companion: it calls [`run_if_asked`]. Any other program, run
/// again, would do its own work.
static KNOWN: AtomicBool = AtomicBool::new(false);

/// The server's end.
#[derive(Debug)]
pub(crate) struct Companion {
    pipe: Option<Pipe>,
    process: Child,
}

#[derive(Debug)]
struct Pipe {
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Companion {
    /// Starts the companion. Call it before the mount, so that the companion cannot inherit
    /// anything of it.
    ///
    /// With an `heir`, it is started once the mount stands, and has another server go on with the
    /// mount when this one dies.
    pub(crate) fn start(image: &Path, dir: &Path, heir: Option<&Heir>) -> io::Result<Self> {
        if !KNOWN.load(Ordering::Relaxed) {
            return Err(io::Error::other("this program does not call run_if_asked"));
        }
        let stderr = if io::stderr().is_terminal() {
            Stdio::inherit()
        } else {
            Stdio::null()
        };
        let mut process = Command::new(std::env::current_exe()?)
            .arg0("stetfs-companion")
            .args([dir, image])
            .arg(std::process::id().to_string())
            .args(heir.into_iter().flat_map(Heir::arguments))
            .env(ASKED, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()?;
        let pipe = process.stdin.take().zip(process.stdout.take());
        let pipe = pipe.map(|(to, from)| Pipe {
            to,
            from: BufReader::new(from),
        });
        Ok(Self { pipe, process })
    }

    /// Tells the companion to leave the mount alone when the server dies.
    pub(crate) fn leave(&mut self) {
        self.say("leave\n");
    }

    /// Has the companion make the kernel send everything that it has cached.
    pub(crate) fn sync(&mut self, mounted: &Mounted) -> io::Result<()> {
        match self.ask("sync\n") {
            Some(answer) if answer == "ok" => Ok(()),
            Some(answer) => Err(io::Error::other(answer)),
            None => sync(&mounted.dir),
        }
    }

    /// Has the companion unmount.
    pub(crate) fn unmount(&mut self, mounted: &Mounted, lazy: bool) -> Result<(), MountError> {
        let question = if lazy { "unmount lazy\n" } else { "unmount\n" };
        match self.ask(question) {
            Some(answer) if answer == "ok" => Ok(()),
            Some(answer) if answer == "busy" => Err(MountError::Busy(mounted.dir.clone())),
            Some(answer) => Err(MountError::Unmount {
                dir: mounted.dir.clone(),
                source: io::Error::other(answer),
            }),
            None => mounted.unmount(lazy),
        }
    }

    /// Asks the companion. Returns its answer; `None` if it is gone.
    fn ask(&mut self, question: &str) -> Option<String> {
        self.say(question);
        let mut answer = String::new();
        let read = self.pipe.as_mut()?.from.read_line(&mut answer);
        if !matches!(read, Ok(1..)) {
            self.pipe = None;
            return None;
        }
        let answer = answer.trim_end();
        Some(answer.strip_prefix("failed ").unwrap_or(answer).to_owned())
    }

    /// Tells the companion what to release and to watch, and after how long to give the server up;
    /// `None`: never.
    pub(crate) fn mounted(&mut self, mounted: &Mounted, abort_hung: Option<Duration>) {
        if let Some(after) = abort_hung {
            self.say(&format!("abort_hung {}\n", after.as_secs()));
        }
        self.say(&format!("mounted {}\n", mounted.device));
    }

    /// Tells the companion where else to report: the file that the server's messages go to, if it
    /// is one. Call it when the server has gone to the background.
    pub(crate) fn log_as_we_do(&mut self) {
        let is_file = rustix::fs::fstat(io::stderr())
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file());
        if let (true, Ok(path)) = (is_file, std::fs::read_link("/proc/self/fd/2")) {
            self.say(&format!("log {}\n", path.display()));
        }
    }

    /// Returns a descriptor by which somebody else can dismiss the companion ([`DONE`]), and its
    /// process.
    pub(crate) fn dismissal(&self) -> Option<(OwnedFd, Pid)> {
        let to = self.pipe.as_ref()?.to.as_fd();
        Some((
            to.try_clone_to_owned().ok()?,
            Pid::from_child(&self.process),
        ))
    }

    /// Ends the companion: there is nothing to release any more.
    pub(crate) fn dismiss(mut self) {
        self.say(DONE);
        self.pipe = None;
        let _ = self.process.wait();
    }

    fn say(&mut self, line: &str) {
        if let Some(Err(e)) = self
            .pipe
            .as_mut()
            .map(|pipe| pipe.to.write_all(line.as_bytes()))
        {
            tracing::warn!(
                "the companion process is gone ({e}): a crash of the server will leave the mount \
                    point behind"
            );
            self.pipe = None;
        }
    }
}

/// Does the work of the companion, or asks a [`Question`](question::Question), and ends the
/// process, if that is what this process is for. In any other process: does nothing.
pub fn run_if_asked() {
    question::run_if_asked();
    KNOWN.store(true, Ordering::Relaxed);
    if std::env::var_os(ASKED).is_none() {
        return;
    }
    let mut args = std::env::args_os().skip(1);
    if let (Some(dir), Some(image), Some(pid)) = (args.next(), args.next(), args.next()) {
        run(
            &PathBuf::from(dir),
            Path::new(&image),
            &pid.to_string_lossy(),
            Succession::read(args).as_ref(),
        );
    }
    std::process::exit(0);
}

fn run(dir: &Path, image: &Path, pid: &str, succession: Option<&Succession>) {
    stay();
    let mut mounted = Mounted {
        dir: dir.to_owned(),
        device: String::new(),
    };
    let tell = Arc::new(Tell::default());
    let mut abort_hung = None;
    let mut leaves = false;
    let mut connection = None;
    for line in io::stdin().lines().map_while(Result::ok) {
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match word {
            "abort_hung" => abort_hung = rest.parse().ok().map(Duration::from_secs),
            "mounted" => {
                rest.clone_into(&mut mounted.device);
                let whose = format!(
                    "the server (process {pid}) of {} on {}",
                    image.display(),
                    dir.display()
                );
                let opened = Arc::new(Connection::open(&mounted));
                connection = Some(opened.clone());
                let pid = pid.to_owned();
                let (mounted, tell) = (mounted.clone(), tell.clone());
                let body = move || watch((&mounted, &opened), (&whose, &pid), abort_hung, &tell);
                let _ = thread::Builder::new().name("watch".to_owned()).spawn(body);
            }
            "log" => *tell.log.lock() = Some(PathBuf::from(rest)),
            "leave" => leaves = true,
            "done" => return,
            _ => answer(&mounted, word, rest),
        }
    }
    let Some(connection) = connection else {
        return;
    };
    if let Some(succession) = succession {
        match succession.begin(|command| tell.prepare(command)) {
            Succeeded::NotOurs => return,
            Succeeded::GoesOn { deaths } => {
                let (shown, dir) = (image.display(), dir.display());
                return tell.say(&format!(
                    "the server (process {pid}) of {shown} on {dir} died; another one goes on with \
                        the mount, in which {deaths} have died by now"
                ));
            }
            Succeeded::Over(why) => {
                let dir = dir.display();
                tell.say(&format!("{dir} does not survive its server: {why}"));
                // This process has the connection open, so nobody gets an error before that.
                connection.abort();
            }
        }
    }
    if leaves {
        return;
    }
    release((&mounted, &connection), image, pid, &|message| {
        tell.say(message)
    });
}

/// Where the companion reports what happened.
#[derive(Default)]
struct Tell {
    log: Mutex<Option<PathBuf>>,
}

impl Tell {
    /// Has a server's messages go where this process reports.
    fn prepare(&self, command: &mut Command) {
        command.env_remove(ASKED);
        let log = self.log.lock().clone();
        let log = log.and_then(|path| File::options().append(true).open(path).ok());
        command.stderr(log.map_or_else(Stdio::inherit, Stdio::from));
    }

    fn say(&self, message: &str) {
        system_log::write(Severity::Error, message);
        let _ = writeln!(io::stderr(), "stetfs: {message}");
        let log = self.log.lock().clone();
        let log = log.map(|path| File::options().append(true).open(path));
        if let Some(Ok(mut log)) = log {
            let _ = writeln!(log, "stetfs: {message}");
        }
    }
}

/// How often the companion looks whether requests wait.
const LOOK: Duration = Duration::from_secs(10);
/// After how long without an answer the companion reports it.
const SILENCE: Duration = Duration::from_secs(30);
/// How long the companion waits for the end of what waits on an aborted connection. Over io_uring,
/// a request that was handed to a stopped thread of the server ends only with that thread (Linux,
/// `fuse_uring_teardown_entries`).
const AFTERMATH: Duration = Duration::from_secs(2);

/// Watches that the server answers, until the mount is gone.
fn watch(
    (mounted, connection): (&Mounted, &Connection),
    (whose, pid): (&str, &str),
    abort_hung: Option<Duration>,
    tell: &Tell,
) {
    let silence = abort_hung.map_or(SILENCE, |after| SILENCE.min(after));
    loop {
        thread::sleep(LOOK.min(silence));
        // Nobody waits; or another file system, with another server, stands there.
        if connection.has_waiting() == Some(false) || !mounted.stands() {
            continue;
        }
        let (tell_end, end) = mpsc::channel();
        let dir = mounted.dir.clone();
        let began = Instant::now();
        // Only the end of the connection can interrupt the question. It is asked from each
        // processor: over io_uring, a request that was passed over in a processor's queue is taken
        // when the next one is answered there.
        thread::spawn(move || {
            let queues = ring::queues().unwrap_or(1);
            let answers = (0..queues).all(|queue| {
                ring::run_on(queue);
                rustix::fs::statfs(&dir).is_ok()
            });
            let _ = tell_end.send(answers);
        });
        match end.recv_timeout(silence) {
            Ok(true) => continue,
            Ok(false) | Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if abort_hung != Some(silence) {
            tell.say(&format!(
                "{whose} has not answered for {} s; programs that use the mount wait, and so does \
                    sync(1). If it was stopped: kill -CONT {pid}. To give it up: kill -KILL {pid} \
                    (everything that was fsynced is in the image)",
                silence.as_secs()
            ));
        }
        let answered = match abort_hung {
            Some(after) => end.recv_timeout(after.saturating_sub(began.elapsed())),
            None => end.recv().map_err(RecvTimeoutError::from),
        };
        let after = began.elapsed().as_secs();
        match answered {
            Ok(true) => tell.say(&format!("{whose} answers again, after {after} s")),
            Ok(false) | Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                connection.abort();
                let is_killed = end.recv_timeout(AFTERMATH) == Err(RecvTimeoutError::Timeout)
                    && kill_server(pid);
                let rest = if is_killed {
                    ", and the server killed since they still waited. Everything that was fsynced \
                        is in the image"
                        .to_owned()
                } else {
                    format!(
                        ". Everything that was fsynced is in the image, which the server holds \
                            until it ends: kill -KILL {pid}"
                    )
                };
                return tell.say(&format!(
                    "{whose} has not answered for {after} s; the connection was aborted, as \
                        abort_hung= says: programs that use the mount get errors{rest}"
                ));
            }
        }
    }
}

/// Kills the server if it is still there. Returns whether it was.
fn kill_server(pid: &str) -> bool {
    let pid = pid.parse().ok().and_then(Pid::from_raw);
    // The number is not another process's as long as its process is the parent.
    let parent = rustix::process::getppid().filter(|parent| Some(*parent) == pid);
    parent.is_some_and(|server| kill_process(server, Signal::KILL).is_ok())
}

/// Does what the server asks for, and tells it the result.
fn answer(mounted: &Mounted, word: &str, rest: &str) {
    let answer = match word {
        "sync" => sync(&mounted.dir).map_err(|e| format!("failed {e}")),
        "unmount" => match mounted.unmount(rest == "lazy") {
            Err(MountError::Busy(_)) => Err("busy".to_owned()),
            done => done.map_err(|e| format!("failed {e}")),
        },
        _ => Err(format!("failed: what is {word:?}?")),
    };
    let answer = answer.err().unwrap_or_else(|| "ok".to_owned());
    println!("{}", answer.replace('\n', " "));
}

/// Makes the kernel send what it has cached of the file system on `dir`.
fn sync(dir: &Path) -> io::Result<()> {
    Ok(rustix::fs::syncfs(File::open(dir)?)?)
}

/// Makes this process survive what ends the server: signals to its process group, to its terminal,
/// and to everything of its name.
fn stay() {
    let _ = rustix::process::setsid();
    let _ = std::env::set_current_dir("/");
    let _ = rustix::thread::set_name(c"mount-companion");
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        // Catch the signal and ignore it.
        let _ = signal_hook::flag::register(signal, Arc::default());
    }
}

/// Detaches the mount and reports it. If something else is mounted on top of it, waits until that
/// is gone.
fn release(
    (mounted, connection): (&Mounted, &Connection),
    image: &Path,
    pid: &str,
    tell: &dyn Fn(&str),
) {
    let (shown, dir) = (image.display(), mounted.dir.display());
    let what = format!("the server (process {pid}) of {shown} on {dir} died");
    let advice = "everything that was fsynced is in the image; mount it again to recover";
    // Open it first, so that no change is missed.
    let changes = File::open("/proc/self/mountinfo");
    let is_there = |all: Vec<_>| !all.is_empty() && !connection.is_gone();
    let was_there = mountinfo::mounts_of(&mounted.device).is_ok_and(is_there);
    let mut has_told = false;
    loop {
        match mounted.release(|| connection.is_gone()) {
            Ok(false) if has_told => return tell(&format!("the mount point {dir} was released")),
            Ok(false) if was_there => {
                return tell(&format!("{what}; the mount point was released; {advice}"));
            }
            Ok(false) => return tell(&format!("{what}; {advice}")),
            Ok(true) => {}
            Err(e) => {
                return tell(&format!(
                    "{what}, and its mount point could not be released: {e}; {advice}"
                ));
            }
        }
        if !has_told {
            has_told = true;
            tell(&format!(
                "{what}; its mount point is released once the mounts on top of it are gone; \
                    {advice}"
            ));
        }
        let Ok(changes) = &changes else { return };
        wait_for_change(changes);
    }
}

/// Waits until a mount is made or undone (proc(5): `mountinfo` is then readable with priority).
fn wait_for_change(mountinfo: &File) {
    let mut fds = [PollFd::new(mountinfo, PollFlags::PRI)];
    let _ = rustix::event::poll(&mut fds, None);
}
