//! Runs a program on a recording volume.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use regex_lite::Regex;
use stetfs_fuse::OnBlock;
use stetfs_media::Image;

use crate::call::Recording;
use crate::guard::Guard;
use crate::judge::{Rule, volume};
use crate::marks::Marks;
use crate::mounted::{self, Mounted};
use crate::recorder::Recorder;
use crate::run::{End, Ran, Run, shell_or_words};

/// The kernel may take this long to send its cached content of mapped files.
const WRITE_BACK: Duration = Duration::from_secs(60);

/// The plan of a recording.
pub struct Plan<'a> {
    /// The volume before the program runs.
    pub base: &'a Image,
    /// The directory on which it is mounted.
    pub dir: &'a Path,
    /// A directory for files, outside of the mount.
    pub scratch: &'a Path,
    /// A command that runs before the program and is not recorded.
    pub setup: Option<&'a str>,
    /// The program and its arguments; `{dir}` in them is the directory.
    pub program: &'a [OsString],
    /// The time limit of the program, and of the command before it.
    pub timeout: Duration,
    /// Lines of the program's standard output that are marks.
    pub marks_from_stdout: Option<Regex>,
    /// True if the program may use groups of changes.
    pub groups: bool,
    /// True if calls of processes that the program has not started count too.
    pub everybody: bool,
    /// True when the user wants to stop.
    pub stop: &'a AtomicBool,
}

/// A recording, and what happened beside it.
pub struct Recorded {
    /// The program's calls.
    pub recording: Recording,
    /// How the program ended.
    pub ran: Ran,
    /// True if the mount was told of sync(2) and syncfs(2).
    pub hears_syncs: bool,
    /// The strangers, with their refused requests.
    pub strangers: Vec<String>,
}

/// Why there is no recording.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error of the volume.
    #[error("the volume: {0}")]
    Volume(#[from] stetfs::Error),
    /// An error of its mount.
    #[error(transparent)]
    Mount(#[from] mounted::Error),
    /// A program cannot be started.
    #[error("starting {program}: {source}")]
    Start {
        /// The program.
        program: String,
        /// The system's error.
        source: io::Error,
    },
    /// The command that runs before the program has failed.
    #[error("the setup {}; it printed:\n{}", ran.end.text(), ran.output)]
    Setup {
        /// How it ended.
        ran: Box<Ran>,
    },
    /// An error of pipes or files for the program.
    #[error("files for the recording: {0}")]
    Files(#[from] io::Error),
    /// The user stopped it before the program began.
    #[error("stopped")]
    Stopped,
}

/// Runs and records the program. If the user stops it, the calls until then are recorded.
///
/// # Errors
/// The recording is impossible, or the user stopped it before the program began.
pub fn record(plan: &Plan<'_>) -> Result<Recorded, Error> {
    let Outlets {
        marks,
        fifo,
        stdout,
        mut said,
    } = Outlets::open(plan)?;
    // The file that the mount table shows, and on which root's mount has its loop device.
    let stands_for = plan.scratch.join("recorded.img");
    File::create(&stands_for)?.set_len(plan.base.size())?;
    let readable = marks.readable()?;
    let recorder = Recorder::new(volume(plan.base)?, marks);
    let recorder = if plan.groups {
        recorder.with_groups()
    } else {
        recorder
    };
    let guard = Guard::new(recorder.clone(), plan.everybody);
    let mounted = Mounted::new(guard.clone(), &stands_for, plan.dir, OnBlock::Auto)?;
    guard.open();
    let dir = mounted.dir().display().to_string();
    let command = |words: &[OsString]| {
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .env("STETFS_DIR", mounted.dir())
            .env("STETFS_MARKS", &fifo);
        command
    };
    if let Some(setup) = plan.setup {
        let words = shell_or_words(setup, &dir);
        let words: Vec<OsString> = words.into_iter().map(OsString::from).collect();
        set_up(plan, &words, command(&words))?;
        // Not as the program's.
        have_written_back(&dir)?;
    }
    recorder.begin()?;
    let words = plan.program.iter().map(|word| replaced(word, &dir));
    let words: Vec<OsString> = words.collect();
    let take = || recorder.take_marks();
    let run = Run {
        stdout,
        beside: (readable, &take),
        family: guard.family(),
        ..Run::new(plan.timeout, plan.stop)
    };
    let ran = run.run(command(&words));
    let mut ran = ran.map_err(|source| started(&words, source))?;
    let hears_syncs = mounted.hears_syncs();
    // The kernel sends what it still has of mapped files before the end. The mount may stay for a
    // while, if it is somebody's working directory.
    guard.lock();
    have_written_back(&dir)?;
    mounted.unmount()?;
    let recording = recorder.end();
    if let Some(said) = &mut said {
        ran.output = crate::run::tail(said)? + &ran.output;
    }
    Ok(Recorded {
        recording,
        ran,
        hears_syncs,
        strangers: guard.strangers(),
    })
}

/// Where the program can make promises.
struct Outlets {
    marks: Marks,
    fifo: PathBuf,
    /// The program's standard output, and a copy of what it writes there; `None` if its lines are
    /// no marks.
    stdout: Option<OwnedFd>,
    said: Option<File>,
}

impl Outlets {
    fn open(plan: &Plan<'_>) -> Result<Self, Error> {
        let mut marks = Marks::new();
        let fifo = plan.scratch.join("fifo");
        if fifo.exists() {
            std::fs::remove_file(&fifo)?;
        }
        marks.read_fifo(&fifo)?;
        let (mut stdout, mut said) = (None, None);
        if let Some(only) = &plan.marks_from_stdout {
            let copy = crate::run::memory_file()?;
            said = Some(copy.try_clone()?);
            stdout = Some(marks.read_output(only.clone(), copy)?);
        }
        Ok(Self {
            marks,
            fifo,
            stdout,
            said,
        })
    }
}

/// Runs the command that comes before the program.
fn set_up(plan: &Plan<'_>, words: &[OsString], command: Command) -> Result<(), Error> {
    let ran = Run::new(plan.timeout, plan.stop).run(command);
    let ran = ran.map_err(|source| started(words, source))?;
    match ran.end {
        End::Exited(0) => Ok(()),
        End::Stopped => Err(Error::Stopped),
        _ => Err(Error::Setup { ran: ran.into() }),
    }
}

/// Makes the kernel send its cached content of mapped files. Another process asks for it: a process
/// that syncs its own mount never ends when it is killed meanwhile.
fn have_written_back(dir: &str) -> Result<(), Error> {
    let words = ["sync", "-f", dir].map(OsString::from);
    let never = AtomicBool::new(false);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    let ran = Run::new(WRITE_BACK, &never).run(command);
    ran.map(drop).map_err(|source| started(&words, source))
}

fn started(words: &[OsString], source: io::Error) -> Error {
    let program = words[0].to_string_lossy().into_owned();
    Error::Start { program, source }
}

/// Returns a word with the directory in place of `{dir}`.
fn replaced(word: &OsString, dir: &str) -> OsString {
    match word.to_str() {
        Some(text) => text.replace("{dir}", dir).into(),
        None => word.clone(),
    }
}

/// A recording, with all that is needed to explore it and to replay its states.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub struct Saved {
    /// The version of the program that wrote it.
    pub version: String,
    /// The program that was recorded.
    pub program: Vec<String>,
    /// How the recorded program ended, in words.
    pub ended: String,
    /// The end of its output.
    pub output: String,
    /// The check.
    pub check: String,
    /// What makes a state right.
    #[serde(default)]
    pub rule: Rule,
    /// Bytes of the volume.
    pub size: u64,
    /// The strangers, with their refused requests.
    #[serde(default)]
    pub strangers: Vec<String>,
    /// The program's calls.
    pub recording: Recording,
}

impl Saved {
    /// Where a recording with findings is kept if nobody named a file.
    pub fn usual_place() -> PathBuf {
        let name = format!("stetfs-crash-{}.recording", std::process::id());
        std::env::temp_dir().join(name)
    }

    /// Reads a recording.
    ///
    /// # Errors
    /// The file cannot be read, or is no recording.
    pub fn read(path: &Path) -> io::Result<Self> {
        let file = io::BufReader::new(File::open(path)?);
        let saved: Self = serde_json::from_reader(file)?;
        let processes = saved.recording.processes.len();
        let is_known = |by: Option<usize>| by.is_none_or(|by| by < processes);
        if saved.recording.calls.iter().all(|call| is_known(call.by)) {
            Ok(saved)
        } else {
            Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "calls of processes that it does not name",
            ))
        }
    }

    /// Writes the recording.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut file = io::BufWriter::new(File::create(path)?);
        serde_json::to_writer(&mut file, self)?;
        io::Write::flush(&mut file)
    }
}
