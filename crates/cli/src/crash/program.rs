//! `stetfs crash -- PROGRAM`: what a power cut does to a program of the user's.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::num::NonZero;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use stetfs_media::Image;
use stetfs_powercut::call::{Recording, grouped};
use stetfs_powercut::explore::{Explored, Explorer, Limits};
use stetfs_powercut::finding::parse_case;
use stetfs_powercut::judge::{self, Check, Judge, Verdict, Verdicts};
use stetfs_powercut::model::Model;
use stetfs_powercut::record::{self, Plan, Saved};
use stetfs_powercut::report::{OfFinding, OfModel, Report};
use stetfs_powercut::run::End;
use stetfs_powercut::states::Effort;

use super::{EXIT_INTERRUPTED, Interrupt, exit};
use crate::args::{Crash, CrashMark, CrashProgram};
use crate::failure::{Explain, Failure, Result};
use crate::size::Size;
use crate::{e2fsprogs, output};

/// The check fails without a power cut, or does not say the same of the same.
pub(super) const EXIT_CHECK: u8 = 3;

/// Findings after which an exploration ends.
const ENOUGH: usize = 20;

/// Bytes of a block of fresh volumes.
const BLOCK: u64 = 4096;

/// The smallest volume on which states are shown: a journal of 4 MiB, and some room beside it.
const SIZE_MIN: u64 = 16 << 20;

/// `stetfs crash mark TEXT`
pub(super) fn mark(args: &CrashMark) -> Result<ExitCode> {
    const NOT_RECORDED: &str = "$STETFS_MARKS is not set: nothing records this program";
    let fifo = std::env::var_os("STETFS_MARKS").map(PathBuf::from);
    let fifo = fifo.ok_or_else(|| {
        Failure::new(NOT_RECORDED).advise("run it as stetfs crash --check CMD -- PROGRAM")
    })?;
    if args.text.contains('\n') {
        return Err(Failure::new("a promise is one line"));
    }
    let shown = || fifo.display().to_string();
    let kind = fs::metadata(&fifo).during(shown)?.file_type();
    if !kind.is_fifo() {
        return Err(Failure::new(format!("{}: not a FIFO", fifo.display())));
    }
    let mut fifo = OpenOptions::new().write(true).open(&fifo).during(shown)?;
    // At once, so that no other's line comes in between.
    fifo.write_all(format!("{}\n", args.text).as_bytes())
        .during(shown)?;
    Ok(ExitCode::SUCCESS)
}

/// Whether it is a case of a program: FILE#CASE.
pub(super) fn is_case(case: &str) -> bool {
    case.contains('#')
}

/// Where everything of a run is.
struct Place {
    scratch: tempfile::TempDir,
    dir: PathBuf,
}

impl Place {
    fn new(dir: Option<&Path>) -> Result<Self> {
        let scratch = tempfile::Builder::new().prefix("stetfs-crash-").tempdir()?;
        let dir = match dir {
            Some(dir) => dir.canonicalize().during(|| dir.display().to_string())?,
            None => {
                let dir = scratch.path().join("dir");
                fs::create_dir(&dir)?;
                dir
            }
        };
        Ok(Self { scratch, dir })
    }

    /// An empty volume of so many bytes, for the user who runs this.
    fn fresh(&self, size: u64) -> Result<Image> {
        if size < SIZE_MIN {
            return Err(Failure::new(format!(
                "a volume of {} is too small: at least {}",
                Size(size),
                Size(SIZE_MIN)
            )));
        }
        let path = self.scratch.path().join("fresh.img");
        File::create(&path)?.set_len(size)?;
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let owner = format!("root_owner={}:{}", uid.as_raw(), gid.as_raw());
        let mut mke2fs = e2fsprogs::command("mke2fs")?;
        mke2fs.args([
            "-q",
            "-F",
            "-t",
            "ext4",
            "-m",
            "0",
            "-b",
            &BLOCK.to_string(),
        ]);
        mke2fs.args(["-J", "size=4", "-E", &owner]).arg(&path);
        let made = mke2fs.output().during(|| "mke2fs".to_owned())?;
        if !made.status.success() {
            let said = String::from_utf8_lossy(&made.stderr).trim().to_owned();
            return Err(
                Failure::new(format!("making a volume of {size} bytes: {said}"))
                    .advise("--size 64M is the default; 16M is about the least"),
            );
        }
        let image = Image::from_file(&path)?;
        fs::remove_file(&path)?;
        Ok(image)
    }

    /// Judges, the first on the directory, the others on directories of their own.
    fn judges(
        &self,
        check: &Check,
        fresh: &Image,
        (jobs, verdicts, stop): (usize, &Arc<Verdicts>, &Arc<AtomicBool>),
    ) -> Result<Vec<Judge>> {
        (0..jobs)
            .map(|n| {
                let scratch = self.scratch.path().join(format!("check{n}"));
                fs::create_dir(&scratch)?;
                let dir = match n {
                    0 => self.dir.clone(),
                    _ => scratch.join("dir"),
                };
                fs::create_dir_all(&dir)?;
                let at = (Path::new("stetfs-crash"), dir.as_path());
                let (verdicts, stop) = (verdicts.clone(), stop.clone());
                Judge::new(check.clone(), fresh.clone(), at, &scratch, verdicts, stop).map_err(told)
            })
            .collect()
    }
}

/// What can be done about a failure of the machinery.
fn told(error: judge::Error) -> Failure {
    let advice = match &error {
        judge::Error::Mount(_) => Some(NO_MOUNT),
        judge::Error::Volume(_) => Some("the states need more room: --size 256M"),
        _ => None,
    };
    let failure = Failure::from(error);
    advice.into_iter().fold(failure, Failure::advise)
}

const NO_MOUNT: &str = "it takes /dev/fuse, and for other users than root fusermount3 (Debian: \
    apt-get install fuse3); --dir names another directory";

fn seconds(number: f64, option: &str) -> Result<Duration> {
    let duration = Duration::try_from_secs_f64(number)
        .ok()
        .filter(|d| !d.is_zero());
    duration.ok_or_else(|| Failure::new(format!("{option} {number}: more than 0 seconds")))
}

fn check(args: &CrashProgram, command: &str) -> Result<Check> {
    if command.trim().is_empty() {
        return Err(Failure::new("--check: the command is empty"));
    }
    Ok(Check {
        command: command.to_owned(),
        timeout: seconds(args.check_timeout, "--check-timeout")?,
    })
}

/// `stetfs crash --check CMD -- PROGRAM`
pub(super) fn run(args: &Crash) -> Result<ExitCode> {
    let of_program = &args.program;
    let command = of_program.check.as_deref().unwrap_or_default();
    let check = check(of_program, command)?;
    let timeout = seconds(of_program.timeout, "--timeout")?;
    let place = Place::new(of_program.dir.as_deref())?;
    let base = match &of_program.image {
        None => place.fresh(of_program.size.0)?,
        Some(file) => Image::from_file(file).during(|| file.display().to_string())?,
    };
    let fresh = match &of_program.image {
        None => base.clone(),
        Some(_) => place.fresh(base.size().max(SIZE_MIN))?,
    };
    let interrupt = Interrupt::listen()?;
    let recorded = record::record(&Plan {
        base: &base,
        dir: &place.dir,
        scratch: place.scratch.path(),
        setup: of_program.setup.as_deref(),
        program: &of_program.words,
        timeout,
        marks_from_stdout: of_program.marks_from_stdout.clone(),
        stop: &interrupt.stop,
    });
    let recorded = match recorded {
        Err(record::Error::Stopped) => return Ok(interrupted(&interrupt)),
        Err(e @ record::Error::Mount(_)) => return Err(Failure::from(e).advise(NO_MOUNT)),
        other => other?,
    };
    let words = of_program.words.iter();
    let words: Vec<String> = words.map(|w| w.to_string_lossy().into_owned()).collect();
    let recording = &recorded.recording;
    let mut report = Report::new(words.clone(), command, recording, &recorded.ran);
    say_what_was_recorded(&report, &recorded);
    let verdicts = Arc::new(Verdicts::default());
    let jobs = args.jobs.map_or(1, NonZero::get);
    let judges = place.judges(&check, &fresh, (jobs, &verdicts, &interrupt.stop))?;
    let begin = Instant::now();
    let explored = without_a_cut(recording, &judges[0])
        .and_then(|()| explore(args, recording, &judges, &verdicts, &mut report));
    drop(judges);
    match explored {
        Ok(()) => {}
        Err(Stop::Stopped) => return Ok(interrupted(&interrupt)),
        Err(Stop::Check(why)) => return Err(why.exit(EXIT_CHECK)),
        Err(Stop::Failed(why)) => return Err(why),
    }
    report.judged = verdicts.len();
    report.seconds = begin.elapsed().as_secs_f64();
    if of_program.keep.is_some() || report.has_findings() {
        let file = of_program.keep.clone().unwrap_or_else(|| {
            let name = format!("stetfs-crash-{}.recording", std::process::id());
            std::env::temp_dir().join(name)
        });
        let saved = Saved {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            program: words,
            check: command.to_owned(),
            size: base.size().max(SIZE_MIN),
            recording: recorded.recording,
        };
        saved.write(&file).during(|| file.display().to_string())?;
        report.recording = Some(file.display().to_string());
    }
    show(args, &report)?;
    Ok(exit(report.has_findings()))
}

/// Why an exploration ends early.
enum Stop {
    Stopped,
    Check(Failure),
    Failed(Failure),
}

impl From<judge::Error> for Stop {
    fn from(error: judge::Error) -> Self {
        match error {
            judge::Error::Stopped => Self::Stopped,
            other => Self::Failed(told(other)),
        }
    }
}

fn interrupted(interrupt: &Interrupt) -> ExitCode {
    let signal = interrupt.signal().unwrap_or(0);
    ExitCode::from(EXIT_INTERRUPTED + signal)
}

fn say_what_was_recorded(report: &Report, recorded: &record::Recorded) {
    let ran = &recorded.ran;
    if ran.end != End::Exited(0) {
        eprintln!("stetfs: the program {}", ended(ran.end, &ran.output));
    }
    if ran.left_behind > 0 {
        eprintln!(
            "stetfs: the program left {} processes behind; they were killed",
            ran.left_behind
        );
    }
    eprintln!(
        "stetfs: recorded {} calls and {} promises",
        report.calls, report.marks
    );
    if report.calls == report.marks {
        eprintln!(
            "stetfs: the program changed nothing in its directory: does it get {{dir}} or \
                $STETFS_DIR?"
        );
    }
    if !recorded.hears_syncs {
        eprintln!(
            "stetfs: sync(2) and syncfs(2) do not reach the recording here (that takes root and \
                Linux 6.18); fsync(2) does"
        );
    }
}

/// Runs the check twice on what the program left without a power cut.
fn without_a_cut(recording: &Recording, judge: &Judge) -> Result<(), Stop> {
    let model: Model = "ext4-journal"
        .parse()
        .map_err(|e: String| Stop::Failed(Failure::new(e)))?;
    let arrangement = model.arrange(recording);
    let (calls, end) = (recording.calls.len(), arrangement.effects.len());
    let all = stetfs_powercut::effect::Set::first(end);
    let tree = arrangement.tree(recording, &all, end);
    let marks: Vec<&str> = recording.marks(calls).collect();
    let (first, second) = (judge.ask(&tree, &marks)?, judge.ask(&tree, &marks)?);
    let said = |verdict: &Verdict| ended(verdict.end, &verdict.output);
    if first.end != second.end {
        return Err(Stop::Check(Failure::new(format!(
            "the check does not say the same of the same state: once it {}\nand once it {}",
            said(&first),
            said(&second)
        ))));
    }
    if !first.holds() {
        return Err(Stop::Check(
            Failure::new(format!(
                "the check fails without any power cut: it {}",
                said(&first)
            ))
            .advise("it judges what the program leaves when it ends, with all that it promised"),
        ));
    }
    Ok(())
}

/// How a program ended, and the end of what it said.
fn ended(end: End, output: &str) -> String {
    match output.trim_end() {
        "" => format!("{}, and said nothing", end.text()),
        said => format!("{}, and said:\n{}", end.text(), super::indented(said)),
    }
}

fn explore(
    args: &Crash,
    recording: &Recording,
    judges: &[Judge],
    verdicts: &Verdicts,
    report: &mut Report,
) -> Result<(), Stop> {
    for model in &args.program.model {
        let bar = bar(model.name);
        let explorer = Explorer {
            recording,
            model: *model,
            judges,
            verdicts,
            effort: Effort {
                seed: args.seed,
                ..Effort::default()
            },
            limits: Limits {
                time: args.budget.time,
                states: args.budget.states,
                findings: ENOUGH,
            },
            listener: &|progress| {
                let counts = progress.counts;
                bar.set_length(stetfs_format::width::usize_as_u64(counts.moments_all));
                bar.set_position(stetfs_format::width::usize_as_u64(counts.moments));
                bar.set_message(format!(
                    "{} states, {} judged, {} findings",
                    counts.states,
                    counts.states - counts.folded,
                    progress.findings
                ));
            },
        };
        let found: Explored = explorer.run()?;
        let mutants = match args.program.mutate {
            true => Some(explorer.mutate()?),
            false => None,
        };
        bar.finish_and_clear();
        let of_model = OfModel::new(recording, &found, mutants.as_deref());
        report.models.push(of_model);
    }
    Ok(())
}

fn bar(model: &str) -> ProgressBar {
    let target = match io::stderr().is_terminal() {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    };
    let bar = ProgressBar::with_draw_target(None, target);
    if let Ok(style) = ProgressStyle::with_template("{prefix} {bar:20} {pos}/{len} moments, {msg}")
    {
        bar.set_style(style);
    }
    bar.set_prefix(model.to_owned());
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

fn show(args: &Crash, report: &Report) -> Result<()> {
    if let Some(file) = &args.program.junit {
        fs::write(file, report.junit()).during(|| file.display().to_string())?;
    }
    if let Some(file) = &args.json {
        output::json_to(file, report)?;
        if file.as_os_str() == "-" {
            return Ok(());
        }
    }
    for model in &report.models {
        let counts = &model.counts;
        let of = match (model.finished, counts.moments_sampled) {
            (false, _) => format!("{} of {} moments", counts.moments, counts.moments_all),
            (true, 0) => format!("{} moments, all states", counts.moments),
            (true, n) => format!(
                "{} moments, a choice of states at {n} of them",
                counts.moments
            ),
        };
        output::line(format_args!(
            "{}: {of}: {} states, {} of them judged, {} fail, for {}",
            model.model,
            grouped(counts.states),
            grouped(counts.states - counts.folded),
            grouped(counts.failing),
            match model.findings.len() {
                1 => "1 cause".to_owned(),
                n => format!("{n} causes"),
            }
        ))?;
        for (n, finding) in model.findings.iter().enumerate() {
            output::line(shown(n + 1, finding, report.recording.as_deref()))?;
        }
        for mutant in model.mutants.iter().flatten() {
            let noticed = match mutant.noticed {
                true => "noticed",
                false => "NOT NOTICED",
            };
            output::line(format_args!("without {}: {noticed}", mutant.call))?;
        }
    }
    Ok(())
}

/// A finding, for people.
fn shown(number: usize, finding: &OfFinding, recording: Option<&str>) -> String {
    let told = &finding.told;
    let mut text = format!(
        "\nfinding {number}, {} states: {}\n\n{}\n",
        finding.states,
        told.headline,
        super::indented(&told.calls.join("\n"))
    );
    text += &match told.output.is_empty() {
        true => format!("\n  the check {}, and said nothing\n", told.check),
        false => format!(
            "\n  the check {}:\n{}\n",
            told.check,
            super::indented(&told.output)
        ),
    };
    if !told.differences.is_empty() {
        text += "  where the nearest state that passes differs:\n";
        text += &format!("{}\n", super::indented(&told.differences.join("\n")));
    }
    for remedy in &finding.remedy {
        text += &format!("  what would help: {remedy}\n");
    }
    if let Some(recording) = recording {
        text += &format!(
            "  stetfs crash --replay '{recording}#{}' --shell\n",
            finding.case
        );
    }
    text
}

/// `stetfs crash --replay FILE#CASE`
pub(super) fn replay(args: &CrashProgram, case: &str) -> Result<ExitCode> {
    let (file, case) = case.rsplit_once('#').unwrap_or((case, ""));
    let saved = Saved::read(Path::new(file)).during(|| file.to_owned())?;
    let recording = &saved.recording;
    let (model, cut) = parse_case(case, recording).map_err(Failure::new)?;
    let check = check(args, args.check.as_deref().unwrap_or(&saved.check))?;
    let place = Place::new(args.dir.as_deref())?;
    let fresh = place.fresh(saved.size)?;
    let interrupt = Interrupt::listen()?;
    let shared = (1, &Arc::default(), &interrupt.stop);
    let judges = place.judges(&check, &fresh, shared)?;
    let judge = &judges[0];
    let arrangement = model.arrange(recording);
    let tree = arrangement.tree(recording, &cut.there, arrangement.ends[cut.calls]);
    let marks: Vec<&str> = recording.marks(cut.calls).collect();
    let verdict = match judge.ask(&tree, &marks) {
        Err(judge::Error::Stopped) => return Ok(interrupted(&interrupt)),
        other => other.map_err(told)?,
    };
    output::line(format_args!(
        "{model}, power cut after {} calls, {} promises: the check {}",
        cut.calls,
        marks.len(),
        verdict.end.text()
    ))?;
    if !verdict.output.is_empty() {
        output::line(super::indented(verdict.output.trim_end()))?;
    }
    if args.shell {
        judge.show(&tree).map_err(told)?;
        let shell = std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into());
        output::line(format_args!(
            "the state is in {}; exit ends this",
            judge.dir().display()
        ))?;
        let mut shell = Command::new(shell);
        let scratch = place.scratch.path().join("check0/marks");
        shell
            .current_dir(judge.dir())
            .envs(judge::environment(judge.dir(), &scratch));
        shell.status().during(|| "the shell".to_owned())?;
    }
    drop(judges);
    Ok(exit(!verdict.holds()))
}
