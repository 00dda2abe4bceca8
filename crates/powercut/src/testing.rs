//! Tests of what a power cut does to one's own code, for `cargo test`. See [`CrashTest`].

use std::cell::Cell;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use parking_lot::Mutex;
use stetfs_crash::sharing::Shard;

use crate::call::Recording;
use crate::explore::{Court, Explorer, Limits};
use crate::fresh;
use crate::judge::{self, Check, Judge, Rule, Unfit, Verdict, Verdicts};
use crate::marks::promise;
use crate::model::{MODELS, Model};
use crate::record::{self, Plan, Saved};
use crate::run::End;
use crate::states::Effort;

thread_local! {
    /// How many runs the test has begun.
    static RUNS: Cell<usize> = const { Cell::new(0) };
}

/// The environment variable that tells a process which part of which run of which test it is.
const PART: &str = "STETFS_CRASH_TEST";

/// Bytes of the volume.
const SIZE: u64 = 64 << 20;

/// How long the code may take, and how long a check may take.
const TIME: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(10)];

/// An exploration ends after this many findings.
const ENOUGH: usize = 5;

type Setup<'a> = Box<dyn Fn(&Path) + 'a>;
type Program<'a> = Box<dyn Fn(&Path, &Promises) + 'a>;
type Holds<'a> = Box<dyn Fn(&Path, &[String]) + 'a>;
type Reads<'a> = Box<dyn Fn(&Path) -> String + 'a>;

/// A test that records what some code does to the files of a directory, and then cuts the power at
/// every moment of it.
///
/// ```no_run
/// use std::{fs, path::Path};
/// use stetfs_powercut::testing::CrashTest;
///
/// fn save(path: &Path, colour: &str) {
///     // ...
/// # let _ = (path, colour);
/// }
///
/// #[test]
/// fn settings_survive_a_power_cut() {
///     CrashTest::new(|dir, promises| {
///         save(&dir.join("settings"), "blue");
///         promises.make("saved");
///     })
///     .setup(|dir| fs::write(dir.join("settings"), "green").unwrap())
///     .check(|dir, promised| {
///         let colour = fs::read_to_string(dir.join("settings")).unwrap();
///         assert!(colour == "blue" || colour == "green" && promised.is_empty(), "{colour}");
///     })
///     .run();
/// }
/// ```
///
/// Each part runs in a process of its own: the test's executable, which is started again with the
/// test's name and gets to the same [`run`](Self::run). So what comes before `run` in the test is
/// done in each of these processes, and the parts share nothing but the directory. A part that
/// panics has failed. [`run`](Self::run) must be called in the thread of the test.
///
/// It takes `/dev/fuse`, and for users other than root `fusermount3`.
pub struct CrashTest<'a> {
    setup: Option<Setup<'a>>,
    program: Program<'a>,
    check: Option<Holds<'a>>,
    read: Option<Reads<'a>>,
    models: Vec<Model>,
}

/// How the code makes promises.
pub struct Promises(PathBuf);

impl Promises {
    /// Promises something, in a line of text: it counts at each power cut from now on.
    ///
    /// # Panics
    /// The recording is over.
    pub fn make(&self, text: &str) {
        let promised = promise(&self.0, &text.replace('\n', " "));
        promised.expect("promising something to the recording");
    }
}

impl<'a> CrashTest<'a> {
    /// A test of this code, which works in a directory. What is read after a power cut must be what
    /// is there at some moment of the run, file by file, unless [`check`](Self::check) or
    /// [`read`](Self::read) says what to look at.
    pub fn new(program: impl Fn(&Path, &Promises) + 'a) -> Self {
        Self {
            setup: None,
            program: Box::new(program),
            check: None,
            read: None,
            models: Vec::new(),
        }
    }

    /// Does this before the recording; it is durable.
    #[must_use]
    pub fn setup(mut self, setup: impl Fn(&Path) + 'a) -> Self {
        self.setup = Some(Box::new(setup));
        self
    }

    /// Judges each state by this, which panics if the promises do not hold. It may change the files
    /// that it finds.
    #[must_use]
    pub fn check(mut self, check: impl Fn(&Path, &[String]) + 'a) -> Self {
        self.check = Some(Box::new(check));
        self
    }

    /// Judges each state by what this reads: it must be what it reads at some moment of the run,
    /// and not before the last promise.
    #[must_use]
    pub fn read(mut self, read: impl Fn(&Path) -> String + 'a) -> Self {
        self.read = Some(Box::new(read));
        self
    }

    /// Explores the rules of this model too: `ext4-ordered`, which is the one without this,
    /// `ext4-dioread-lock`, `ext4-writeback`, `ext4-journal` or `posix`.
    ///
    /// # Panics
    /// There is no such model.
    #[must_use]
    pub fn model(mut self, name: &str) -> Self {
        self.models.push(name.parse().expect("a model"));
        self
    }

    /// Runs the test.
    ///
    /// # Panics
    /// Some state after a power cut is wrong; the message tells which calls lead to it, and what
    /// would help. Or the test cannot be run.
    pub fn run(self) {
        let thread = thread::current();
        let test = thread.name().expect("the thread of a test has its name");
        let run = RUNS.replace(RUNS.get() + 1);
        let name = format!("{test}/{run}");
        if let Ok(part) = std::env::var(PART) {
            if let Some(part) = part.strip_prefix(&format!("{name}/")) {
                self.be(part, test, &name);
                process::exit(0);
            }
            // This process is a part of a later run of the test.
            return;
        }
        // All that runs below the recording process counts as the code, so it is not this process,
        // which has other tests.
        let words = words(test, &name, EXPLORES).expect("the test's own path");
        let done = Command::new(&words[0]).args(&words[1..]).output();
        let done = done.expect("starting the test again");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{}", said.trim_end());
    }

    /// Does a part in this process.
    fn be(&self, part: &str, test: &str, name: &str) {
        if part == EXPLORES {
            let found = self.explore(test, name);
            let found = found.unwrap_or_else(|why| format!("{why:#}"));
            eprint!("{found}");
            process::exit(i32::from(!found.is_empty()));
        }
        let path = |name: &str| std::env::var_os(name).map(PathBuf::from).expect(name);
        let dir = path("STETFS_DIR");
        match (part, &self.setup, &self.check, &self.read) {
            ("setup", Some(setup), ..) => setup(&dir),
            ("check", _, Some(check), _) => {
                let marks = fs::read_to_string(path("STETFS_MARKS_FILE")).expect("the promises");
                check(&dir, &marks.lines().map(str::to_owned).collect::<Vec<_>>());
            }
            ("read", _, _, Some(read)) => {
                println!("{}", read(&dir));
            }
            _ => (self.program)(&dir, &Promises(path("STETFS_MARKS"))),
        }
    }

    /// Records and explores. Returns the findings in words.
    fn explore(&self, test: &str, name: &str) -> Result<String> {
        let scratch = tempfile::Builder::new().prefix("stetfs-crash-").tempdir()?;
        let dir = scratch.path().join("dir");
        fs::create_dir(&dir)?;
        let stop = Arc::new(AtomicBool::new(false));
        let command = |part: &str| words(test, name, part).map(|words| quoted(&words));
        let program = words(test, name, "program")?;
        let base = fresh::volume(SIZE)?;
        let setup = self.setup.as_ref().map(|_| command("setup")).transpose()?;
        let recorded = record::record(&Plan {
            base: &base,
            dir: &dir,
            scratch: scratch.path(),
            setup: setup.as_deref(),
            program: &program,
            timeout: TIME[0],
            marks_from_stdout: None,
            groups: false,
            everybody: false,
            stop: &stop,
        })?;
        let (ran, recording) = (recorded.ran, recorded.recording);
        ensure!(
            ran.end == End::Exited(0),
            "the code {}; it printed:\n{}",
            ran.end.text(),
            ran.output
        );
        let (rule, command) = match (&self.check, &self.read) {
            (Some(_), _) => (Rule::Holds, command("check")?),
            (None, Some(_)) => (Rule::Prints, command("read")?),
            (None, None) => (Rule::Files, String::new()),
        };
        let check = Check {
            rule,
            command,
            timeout: TIME[1],
            everybody: false,
        };
        let verdicts = Arc::new(Verdicts::default());
        let files = scratch.path().join("check");
        fs::create_dir(&files)?;
        let at = (Path::new("stetfs-crash"), dir.as_path());
        let shared = (verdicts.clone(), stop);
        let judge = Judge::new(check.clone(), base, at, &files, shared.0, shared.1)?;
        teach(&judge, &recording)?;
        let saved = Saved {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            program: program
                .iter()
                .map(|word| word.to_string_lossy().into_owned())
                .collect(),
            ended: ran.end.text(),
            output: ran.output,
            check: check.command,
            rule,
            size: SIZE,
            strangers: recorded.strangers,
            recording,
        };
        self.findings(&saved, judge, &verdicts)
    }

    /// Explores a recording. If something is found, keeps it for replays.
    fn findings(&self, saved: &Saved, judge: Judge, verdicts: &Verdicts) -> Result<String> {
        let looked = Mutex::default();
        let court = Court {
            judges: &[judge],
            verdicts,
            looked: &looked,
            shard: Shard::WHOLE,
            limits: Limits {
                findings: ENOUGH,
                ..Limits::default()
            },
            listener: &|_| (),
            said: &|| (),
        };
        let mut text = String::new();
        let first = MODELS.first().filter(|_| self.models.is_empty());
        for model in first.into_iter().chain(&self.models) {
            let explorer = Explorer {
                recording: &saved.recording,
                model: *model,
                court: &court,
                effort: Effort::default(),
            };
            for (n, finding) in explorer.run()?.findings.iter().enumerate() {
                let kept = Saved::usual_place();
                if text.is_empty() {
                    saved.write(&kept).context("keeping the recording")?;
                }
                text += &finding.text(n + 1, Some(&kept.display().to_string()));
            }
        }
        Ok(text)
    }
}

/// The part that records, starts the others, and judges.
const EXPLORES: &str = "explores";

/// The words that start a part of a run of a test.
fn words(test: &str, name: &str, part: &str) -> Result<Vec<OsString>> {
    let exe = std::env::current_exe().context("the test's own path")?;
    let first = [
        "env".into(),
        format!("{PART}={name}/{part}").into(),
        exe.into(),
    ];
    let only = ["--exact", test, "--include-ignored", "--nocapture"];
    Ok(first.into_iter().chain(only.map(OsString::from)).collect())
}

/// Asks the judge about what the run left at its end, and tells it what the run shows.
fn teach(judge: &Judge, recording: &Recording) -> Result<()> {
    let said = |verdict: &Verdict| {
        let (end, output) = (verdict.end.text(), verdict.output.trim_end());
        format!("it {end}, and printed:\n{output}")
    };
    match judge.try_out(recording)? {
        Some(Unfit::Fails(first)) => {
            bail!("judging fails without any power cut: {}", said(&first))
        }
        Some(Unfit::Differs(first, second)) => bail!(
            "the same state is judged differently: first {}\nthen {}",
            said(&first),
            said(&second)
        ),
        None => {}
    }
    judge::teach(std::slice::from_ref(judge), recording)?;
    Ok(())
}

/// Writes words as a line for the shell.
fn quoted(words: &[OsString]) -> String {
    let one = |word: &OsString| format!("'{}'", word.to_string_lossy().replace('\'', "'\\''"));
    words.iter().map(one).collect::<Vec<_>>().join(" ")
}
