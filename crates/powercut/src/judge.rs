//! Shows states to the user's check, each different state once.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use stetfs::{Atime, Fs, MountOptions};
use stetfs_fuse::OnBlock;
use stetfs_media::Image;
use stetfs_media::sim::{CrashImage, SimOptions};
use stetfs_testkit::world::tree::hash;

use crate::call::Recording;
use crate::guard::Guard;
use crate::model::Had;
use crate::mounted::{self, Mounted};
use crate::run::{End, Run, memory_file, shell_or_words};
use crate::shown::{Files, Printed, Prints, Shown};
use crate::stage::Stage;
use crate::tree::Tree;

/// Why a state cannot be judged.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The volume on which states are shown.
    #[error("the volume for the states: {0}")]
    Volume(#[from] stetfs::Error),
    /// The mount on which they are shown.
    #[error(transparent)]
    Mount(#[from] mounted::Error),
    /// The check could not be started.
    #[error("starting the check {command}: {source}")]
    Check {
        /// The command.
        command: String,
        /// The system's error.
        source: io::Error,
    },
    /// A file for the check could not be written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file system that runs failed as a model.
    #[error("{0:#}")]
    System(anyhow::Error),
    /// Nothing was told of what the run shows ([`teach`]).
    #[error("the judge does not know what the run shows")]
    NotTaught,
    /// The user stopped it.
    #[error("stopped")]
    Stopped,
}

/// The check's verdict on a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// How the check ended. Exit code 0: the promises hold.
    pub end: End,
    /// The end of its output.
    pub output: String,
}

impl Verdict {
    fn of(printed: Printed) -> Self {
        Self {
            end: printed.end(),
            output: printed.text().to_owned(),
        }
    }

    /// True if the promises hold.
    pub fn holds(&self) -> bool {
        self.end == End::Exited(0)
    }
}

/// Why a check, or a command that reads, cannot judge: its answers about what a run left at its
/// end.
#[derive(Debug)]
pub enum Unfit {
    /// Two answers about the same state.
    Differs(Verdict, Verdict),
    /// What is there without a power cut is wrong.
    Fails(Verdict),
}

/// What makes a state right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// The user's command exits with 0.
    #[default]
    Holds,
    /// The user's command prints what it prints at some moment of the run.
    Prints,
    /// Each file is as it is at some moment of the run.
    Files,
}

/// The user's check.
#[derive(Clone, Debug)]
pub struct Check {
    /// What makes a state right.
    pub rule: Rule,
    /// The command; `{dir}` in it is the directory. Empty for [`Rule::Files`].
    pub command: String,
    /// Its time limit.
    pub timeout: Duration,
    /// True if changes by processes that the check has not started count too.
    pub everybody: bool,
}

/// A mounted volume for states, and the check.
pub struct Judge {
    check: Check,
    fresh: Image,
    stage: Stage,
    guard: Guard<Stage>,
    mounted: Mounted,
    /// Files for the check, outside of the mount.
    scratch: PathBuf,
    verdicts: Arc<Verdicts>,
    stop: Arc<AtomicBool>,
    shown: OnceLock<Arc<Shown>>,
}

/// The key of a state. States with the same key get the same verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// A hash of the tree.
    pub tree: u128,
    /// A hash of the marks that count.
    pub marks: u64,
}

impl Key {
    /// The key of a tree with these marks.
    pub fn of(tree: &Tree, marks: &[&str]) -> Self {
        Self {
            tree: tree.digest(),
            marks: hash(marks.join("\n").as_bytes()),
        }
    }

    /// Returns a number that decides the state's shard.
    pub fn number(&self) -> u64 {
        let [tree, marks] = [
            self.tree.to_le_bytes(),
            u128::from(self.marks).to_le_bytes(),
        ];
        hash(&[tree, marks].concat())
    }
}

/// The verdicts so far.
#[derive(Default)]
pub struct Verdicts {
    by_state: Mutex<HashMap<Key, Arc<Verdict>>>,
}

impl Verdicts {
    /// Returns the verdict on a state, if there is one.
    pub fn get(&self, key: &Key) -> Option<Arc<Verdict>> {
        self.by_state.lock().get(key).cloned()
    }

    /// Adds the verdict on a state.
    pub fn insert(&self, key: Key, verdict: Arc<Verdict>) {
        self.by_state.lock().insert(key, verdict);
    }

    /// Returns all verdicts, in no order.
    pub fn all(&self) -> Vec<(Key, Arc<Verdict>)> {
        let by_state = self.by_state.lock();
        by_state.iter().map(|(key, v)| (*key, v.clone())).collect()
    }
}

/// Returns the options for a short-lived volume in memory, for one process.
pub(crate) fn volume_options() -> MountOptions {
    MountOptions {
        commit: Duration::MAX,
        // Reading changes nothing.
        atime: Atime::Never,
        ..MountOptions::default()
    }
}

/// Mounts a volume in memory with this content.
///
/// # Errors
/// It cannot be mounted.
pub fn volume(content: &Image) -> stetfs::Result<Fs> {
    let dev = Arc::new(CrashImage::new(content.clone(), SimOptions::default()));
    Fs::mount(dev, volume_options()).map(|(fs, _)| fs)
}

impl Judge {
    /// True if the user wants to stop.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Mounts a volume on `dir`. `fresh` is an empty volume, as large as the one that the program
    /// ran on. `scratch` is a directory for files, outside of the mount.
    ///
    /// # Errors
    /// The volume cannot be mounted.
    pub fn new(
        check: Check,
        fresh: Image,
        (image, dir): (&Path, &Path),
        scratch: &Path,
        verdicts: Arc<Verdicts>,
        stop: Arc<AtomicBool>,
    ) -> Result<Self, Error> {
        let fs = volume(&fresh)?;
        let inodes = fs.statfs()?.files;
        let stage = Stage::new(fs, inodes);
        let guard = Guard::new(stage.clone(), check.everybody);
        let mounted = Mounted::new(guard.clone(), image, dir, OnBlock::Never)?;
        guard.open();
        Ok(Self {
            check,
            fresh,
            stage,
            guard,
            mounted,
            scratch: scratch.to_owned(),
            verdicts,
            stop,
            shown: OnceLock::new(),
        })
    }

    /// Asks twice about what a run left at its end, without a power cut. Returns why the answers
    /// are of no use, if they are not.
    ///
    /// # Errors
    /// The command cannot be run.
    pub fn try_out(&self, recording: &Recording) -> Result<Option<Unfit>, Error> {
        let tree = Had::new(recording).at_the_end();
        let marks: Vec<&str> = recording.marks(recording.calls.len()).collect();
        let (first, second, is_same) = match self.check.rule {
            Rule::Files => return Ok(None),
            Rule::Holds => {
                let (first, second) = (self.ask(&tree, &marks)?, self.ask(&tree, &marks)?);
                let is_same = first.end == second.end;
                (first, second, is_same)
            }
            Rule::Prints => {
                let (first, second) = (self.print(&tree, &marks)?, self.print(&tree, &marks)?);
                let is_same = first.is_same(&second);
                (Verdict::of(first), Verdict::of(second), is_same)
            }
        };
        Ok(match (is_same, first.holds()) {
            (false, _) => Some(Unfit::Differs(first, second)),
            (true, false) => Some(Unfit::Fails(first)),
            (true, true) => None,
        })
    }

    /// What makes a state right.
    pub fn rule(&self) -> Rule {
        self.check.rule
    }

    /// Shows a tree until the next one is shown.
    ///
    /// # Errors
    /// The tree does not fit on the volume.
    pub fn show(&self, tree: &Tree) -> Result<(), Error> {
        let fs = volume(&self.fresh)?;
        tree.write(&fs)?;
        self.stage.show(fs);
        Ok(())
    }

    /// Returns the strangers, with their refused requests, a line for each.
    pub fn strangers(&self) -> Vec<String> {
        self.guard.strangers()
    }

    /// Returns the directory on which states are shown.
    pub fn dir(&self) -> &Path {
        self.mounted.dir()
    }

    /// Returns the check's verdict on a tree, after these marks. An earlier verdict on an equal
    /// tree counts for this one.
    ///
    /// # Errors
    /// The check cannot be run.
    pub fn judge(&self, tree: &Tree, marks: &[&str]) -> Result<Arc<Verdict>, Error> {
        let key = Key::of(tree, marks);
        if let Some(known) = self.verdicts.get(&key) {
            return Ok(known);
        }
        let verdict = Arc::new(self.ask(tree, marks)?);
        self.verdicts.insert(key, verdict.clone());
        Ok(verdict)
    }

    /// Does the same, but always asks the check.
    ///
    /// # Errors
    /// The check cannot be run.
    pub fn ask(&self, tree: &Tree, marks: &[&str]) -> Result<Verdict, Error> {
        let (end, output) = match (self.shown.get().map(|shown| &**shown), self.check.rule) {
            (Some(Shown::Files(_)), _) if self.stop.load(Ordering::Relaxed) => {
                return Err(Error::Stopped);
            }
            (Some(Shown::Files(files)), _) => files.judge(tree, marks),
            (Some(Shown::Printed(prints)), _) => prints.judge(&self.print(tree, marks)?, marks),
            (None, Rule::Holds) => self.run(tree, marks, None)?,
            (None, Rule::Prints | Rule::Files) => return Err(Error::NotTaught),
        };
        Ok(Verdict { end, output })
    }

    /// Runs the command on a tree, after these marks, and keeps what it prints.
    ///
    /// # Errors
    /// The command cannot be run.
    pub fn print(&self, tree: &Tree, marks: &[&str]) -> Result<Printed, Error> {
        let started = |source| self.not_started(source);
        let mut file = memory_file().map_err(started)?;
        let stdout = file.try_clone().map_err(started)?;
        let (end, complaints) = self.run(tree, marks, Some(stdout.into()))?;
        Printed::new((end, &complaints), &mut file).map_err(started)
    }

    fn not_started(&self, source: io::Error) -> Error {
        Error::Check {
            command: self.check.command.clone(),
            source,
        }
    }

    /// Runs the command on a tree, after these marks. Returns how it ended, and the end of what it
    /// printed, without what goes to `stdout`.
    fn run(
        &self,
        tree: &Tree,
        marks: &[&str],
        stdout: Option<OwnedFd>,
    ) -> Result<(End, String), Error> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        self.show(tree)?;
        let path = self.scratch.join("marks");
        let mut text = marks.join("\n");
        if !text.is_empty() {
            text.push('\n');
        }
        fs::write(&path, text).map_err(|source| Error::File {
            path: path.clone(),
            source,
        })?;
        let dir = self.dir().display().to_string();
        let words = shell_or_words(&self.check.command, &dir);
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .envs(environment(self.dir(), &path));
        let run = Run {
            stdout,
            ..Run::new(self.check.timeout, &self.stop)
        };
        let ran = run.run(command).map_err(|e| self.not_started(e))?;
        // Stopping the run may have ended the check first.
        let is_stopped = ran.end == End::Stopped || self.stop.load(Ordering::Relaxed);
        if is_stopped {
            return Err(Error::Stopped);
        }
        Ok((ran.end, ran.output))
    }
}

/// Finds out what a run shows, and tells the judges, whose rule it is from now on. Returns nothing
/// where the user's check is the rule.
///
/// # Errors
/// The command that reads cannot be run.
pub fn teach(judges: &[Judge], recording: &Recording) -> Result<Option<Arc<Shown>>, Error> {
    let judge = &judges[0];
    let shown = match judge.rule() {
        Rule::Holds => return Ok(None),
        Rule::Files => Shown::Files(Files::of(recording)),
        Rule::Prints => {
            let print = |tree: &Tree, marks: &[&str]| judge.print(tree, marks);
            Shown::Printed(Prints::of(recording, print)?)
        }
    };
    let shown = Arc::new(shown);
    for judge in judges {
        judge.shown.get_or_init(|| shown.clone());
    }
    Ok(Some(shown))
}

/// Returns the variables in a check's environment.
pub fn environment(dir: &Path, marks: &Path) -> [(&'static str, OsString); 2] {
    [
        ("STETFS_DIR", dir.into()),
        ("STETFS_MARKS_FILE", marks.into()),
    ]
}
