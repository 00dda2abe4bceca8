//! `stetfs crash -- PROGRAM`: what a power cut does to a user's program.

use std::fs;
use std::num::NonZero;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use parking_lot::Mutex;
use stetfs_crash::sharing::Shard;
use stetfs_format::width::usize_as_u64;
use stetfs_media::Image;
use stetfs_powercut::blocks;
use stetfs_powercut::call::Recording;
use stetfs_powercut::explore::{self, Court, Early, Explored, Explorer, Limits, Noticed, Progress};
use stetfs_powercut::finding::{indented, parse_case};
use stetfs_powercut::fresh::SIZE_MIN;
use stetfs_powercut::judge::{self, Check, Judge, Rule, Unfit, Verdict, Verdicts};
use stetfs_powercut::marks::promise;
use stetfs_powercut::record::{self, Plan, Saved};
use stetfs_powercut::report::{Asked, OfModel, Report};
use stetfs_powercut::resume::{self, Resumed};
use stetfs_powercut::run::End;
use stetfs_powercut::shown::Shown;
use stetfs_powercut::states::Effort;
use stetfs_powercut::system::System;
use stetfs_powercut::tree::Tree;
use stetfs_powercut::under::Under;

use super::ending::{EXIT_INTERRUPTED, Interrupt, exit};
use super::place::{NO_MOUNT, Place, told};
use super::{ending, findings, place};
use crate::args::crash::{Crash, CrashMark, CrashMerge, CrashProgram};
use crate::failure::{Explain, Failure, Result};
use crate::output;
use crate::progress;

/// Exit code: the check fails without a power cut, or gives two answers for one state.
pub(super) const EXIT_CHECK: u8 = 3;

/// Exit code: nothing was found, and not everything was looked at.
pub(super) const EXIT_INCOMPLETE: u8 = 4;

/// A check that takes longer is slow, because it runs about a thousand times.
const SLOW: Duration = Duration::from_millis(500);

/// An exploration ends after this many findings.
const ENOUGH: usize = 20;

/// `stetfs crash mark TEXT`
pub(super) fn mark(args: &CrashMark) -> Result<ExitCode> {
    const NOT_RECORDED: &str = "$STETFS_MARKS is not set: nothing records this program";
    let fifo = std::env::var_os("STETFS_MARKS").map(PathBuf::from);
    let fifo = fifo.ok_or_else(|| {
        Failure::new(NOT_RECORDED).advise("run it as stetfs crash --check CMD -- PROGRAM")
    })?;
    if args.text.contains('\n') {
        return Err(Failure::new("a promise must be one line"));
    }
    let shown = || fifo.display().to_string();
    let kind = fs::metadata(&fifo).during(shown)?.file_type();
    if !kind.is_fifo() {
        return Err(Failure::new(format!("{}: not a FIFO", fifo.display())));
    }
    promise(&fifo, &args.text).during(shown)?;
    Ok(ExitCode::SUCCESS)
}

/// True if this names a case of a program: FILE#CASE.
pub(super) fn is_case(case: &str) -> bool {
    case.contains('#')
}

fn seconds(number: f64, option: &str) -> Result<Duration> {
    let duration = Duration::try_from_secs_f64(number)
        .ok()
        .filter(|d| !d.is_zero());
    duration
        .ok_or_else(|| Failure::new(format!("{option} {number}: it must be more than 0 seconds")))
}

/// Returns the check that was asked for, or that of the recording.
fn check(args: &CrashProgram, saved: Option<&Saved>) -> Result<Check> {
    let (rule, command) = match (&args.check, &args.read, saved) {
        (Some(command), _, _) => (Rule::Holds, command.as_str()),
        (None, Some(command), _) => (Rule::Prints, command.as_str()),
        (None, None, Some(saved)) => (saved.rule, saved.check.as_str()),
        (None, None, None) => (Rule::Files, ""),
    };
    if command.trim().is_empty() && rule != Rule::Files {
        let option = match rule {
            Rule::Prints => "--read",
            Rule::Holds | Rule::Files => "--check",
        };
        return Err(Failure::new(format!("{option}: the command is empty")));
    }
    Ok(Check {
        rule,
        command: command.to_owned(),
        timeout: seconds(args.check_timeout, "--check-timeout")?,
        // A user in a shell may look at the state from another process.
        everybody: args.others || args.shell,
    })
}

/// Fails if a model has no groups of changes but the program had them.
fn check_models(models: &[Under]) -> Result<()> {
    let mut models = models.iter();
    let knows_none = |model: &&Under| match model {
        Under::Rules(_) => true,
        Under::System(system) => !system.keeps_groups(),
    };
    match models.find(knows_none) {
        None => Ok(()),
        Some(model) => Err(Failure::new(format!(
            "{model} has no groups of changes, but the program is recorded with them (--groups): \
                without them it would act differently"
        ))
        .advise("--model stet, or another scheme of ours; or record it without --groups")),
    }
}

/// Fails if a model does not leave the same states on every machine.
fn check_shared(models: &[Under]) -> Result<()> {
    let mut systems = models.iter().filter_map(|model| match model {
        Under::System(system) => Some(system),
        Under::Rules(_) => None,
    });
    systems
        .find(|system| !system.is_repeatable())
        .map_or(Ok(()), |system| {
            Err(Failure::new(format!(
                "--shard: the states of {system} cannot be shared, since it does not do the same \
                    twice"
            ))
            .advise("explore this model on one machine, without --shard"))
        })
}

/// `stetfs crash --check CMD -- PROGRAM`, and `--recording FILE`
pub(super) fn run(args: &Crash) -> Result<ExitCode> {
    let interrupt = Interrupt::listen()?;
    let of_program = &args.program;
    if args.shard.is_some() && of_program.recording.is_none() {
        return Err(Failure::new(
            "--shard divides the states of one recording, but this command records the program \
                anew",
        )
        .advise("record once with --save FILE, then give each machine --recording FILE"));
    }
    let saved = of_program.recording.as_ref().map(|file| {
        let saved = Saved::read(file);
        saved.during(|| file.display().to_string())
    });
    let saved = saved.transpose()?;
    let has_groups = |saved: &Saved| saved.recording.has_groups;
    if saved.as_ref().map_or(of_program.groups, has_groups) && of_program.save.is_none() {
        check_models(&of_program.model)?;
    }
    if args.shard.is_some() {
        check_shared(&of_program.model)?;
    }
    let check = check(of_program, saved.as_ref())?;
    let place = Place::new(of_program.dir.as_deref())?;
    let saved = match saved {
        Some(saved) => saved,
        None => match recorded(of_program, &check, &place, &interrupt)? {
            Some(saved) => saved,
            None => {
                println!("INCOMPLETE: interrupted before the program began");
                return Ok(interrupted(&interrupt));
            }
        },
    };
    if of_program.save.is_some() && interrupt.signal().is_some() {
        eprintln!("stetfs: interrupted: the recording is incomplete and was not saved");
        return Ok(interrupted(&interrupt));
    }
    let mut report = match explored(args, &saved, (&check, &place), &interrupt) {
        Ok(report) => report,
        Err(Stop::Stopped) => return Ok(interrupted(&interrupt)),
        Err(Stop::Check(why)) => return Err(why.exit(EXIT_CHECK)),
        Err(Stop::Failed(why)) => return Err(why),
    };
    report.recording = keep(of_program, &saved, &report)?;
    if of_program.save.is_none() {
        let files = (args.json.as_deref(), of_program.junit.as_deref());
        findings::show(&report, false, files)?;
    }
    Ok(code(&report, interrupt.signal()))
}

/// Tries the check without a power cut, then explores the recording unless it is only to be saved.
/// Returns the report, which covers a part if the user stopped the exploration.
fn explored(
    args: &Crash,
    saved: &Saved,
    (check, place): (&Check, &Place),
    interrupt: &Interrupt,
) -> Result<Report, Stop> {
    let of_program = &args.program;
    let verdicts = Arc::new(Verdicts::default());
    let asked = resume::Asked::new(check, &saved.recording, saved.size);
    let resumed = args.resume.as_ref();
    let resumed = resumed.map(|file| Resumed::open(file, asked, &verdicts));
    let resumed = resumed.transpose().map_err(|e| ending::told(&e))?;
    let jobs = args.jobs.map_or(1, NonZero::get);
    let fresh = place::fresh(saved.size)?;
    let judges = place.judges(check, &fresh, (jobs, &verdicts, &interrupt.stop))?;
    let shard = args.shard.unwrap_or(Shard::WHOLE);
    let asked = Asked::new(saved, check, args.seed, of_program.mutate);
    let mut report = Report::new(saved, asked, shard);
    let run = Run {
        args,
        recording: &saved.recording,
        judges: &judges,
        verdicts: &verdicts,
        resumed: resumed.as_ref(),
        fresh: &fresh,
    };
    let begin = Instant::now();
    let done = run.without_a_cut().and_then(|()| match of_program.save {
        Some(_) => Ok(()),
        None => run.explore(shard, &mut report),
    });
    let done = match done {
        // Report what was found until then.
        Err(Stop::Stopped) if of_program.save.is_none() => {
            run.not_looked_at(&mut report);
            Ok(())
        }
        other => other,
    };
    drop(judges);
    if let Some(resumed) = &resumed {
        resumed.keep(&verdicts).map_err(|e| ending::told(&e))?;
    }
    done?;
    report.seconds = begin.elapsed().as_secs_f64();
    Ok(report)
}

/// Returns the exit code of a report, or of the signal that ended it.
fn code(report: &Report, signal: Option<u8>) -> ExitCode {
    match (report.early(), signal) {
        _ if report.has_findings() => exit(true),
        (Some(Early::Stopped), Some(signal)) => ExitCode::from(EXIT_INTERRUPTED + signal),
        (Some(_), _) => ExitCode::from(EXIT_INCOMPLETE),
        (None, _) => exit(false),
    }
}

/// Runs the program and records it. Returns None if the user stopped it.
fn recorded(
    args: &CrashProgram,
    check: &Check,
    place: &Place,
    interrupt: &Interrupt,
) -> Result<Option<Saved>> {
    let timeout = seconds(args.timeout, "--timeout")?;
    let base = match &args.image {
        None => place::fresh(args.size.0)?,
        Some(file) => Image::from_file(file).during(|| file.display().to_string())?,
    };
    let recorded = record::record(&Plan {
        base: &base,
        dir: &place.dir,
        scratch: place.scratch.path(),
        setup: args.setup.as_deref(),
        program: &args.words,
        timeout,
        marks_from_stdout: args.marks_from_stdout.clone(),
        groups: args.groups,
        everybody: args.others,
        stop: &interrupt.stop,
    });
    let recorded = match recorded {
        Err(record::Error::Stopped) => return Ok(None),
        Err(e @ record::Error::Mount(_)) => return Err(Failure::from(e).advise(NO_MOUNT)),
        other => other?,
    };
    say_what_was_recorded(&recorded);
    let words = args.words.iter();
    Ok(Some(Saved {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        program: words.map(|w| w.to_string_lossy().into_owned()).collect(),
        ended: recorded.ran.end.text(),
        output: recorded.ran.output,
        check: check.command.clone(),
        rule: check.rule,
        size: base.size().max(SIZE_MIN),
        strangers: recorded.strangers,
        recording: recorded.recording,
    }))
}

/// Keeps the recording if the user asked for that or something was found; returns where.
fn keep(args: &CrashProgram, saved: &Saved, report: &Report) -> Result<Option<String>> {
    let shown = |file: &Path| file.display().to_string();
    if let Some(file) = &args.recording {
        return Ok(Some(shown(file)));
    }
    let wanted = args.save.as_ref().or(args.keep.as_ref());
    let file = match (wanted, report.has_findings()) {
        (Some(file), _) => file.clone(),
        (None, true) => Saved::usual_place(),
        (None, false) => return Ok(None),
    };
    saved.write(&file).during(|| shown(&file))?;
    Ok(Some(shown(&file)))
}

/// Adds up reports about programs (`stetfs crash merge`).
pub(super) fn merge(args: &CrashMerge) -> Result<ExitCode> {
    let mut merged: Option<Report> = None;
    for file in &args.files {
        let at = || file.display().to_string();
        let text = fs::read(file).during(at)?;
        let added = Report::parse(&text).and_then(|report| match &mut merged {
            None => {
                merged = Some(report);
                Ok(())
            }
            Some(merged) => merged.add(report),
        });
        added.map_err(|e| ending::told(&e).context(at()))?;
    }
    let merged = merged.ok_or_else(|| Failure::new("there is nothing to merge"))?;
    let files = (args.json.as_deref(), args.junit.as_deref());
    findings::show(&merged, true, files)?;
    if !merged.has_findings() && !merged.shards.missing().is_empty() {
        return Ok(ExitCode::from(EXIT_INCOMPLETE));
    }
    Ok(code(&merged, None))
}

/// Why an exploration ends early.
enum Stop {
    Stopped,
    Check(Failure),
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
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

fn say_what_was_recorded(recorded: &record::Recorded) {
    let (ran, recording) = (&recorded.ran, &recorded.recording);
    let calls = recording.calls.len();
    let marks = recording.marks(calls).count();
    if ran.end != End::Exited(0) {
        eprintln!("stetfs: the program {}", ended(ran.end, &ran.output));
    }
    if ran.left_behind > 0 {
        eprintln!(
            "stetfs: the program left {} processes behind; they were killed",
            ran.left_behind
        );
    }
    eprintln!("stetfs: recorded {calls} calls and {marks} promises");
    for line in &recorded.strangers {
        eprintln!(
            "stetfs: refused or not counted, because the program did not start the process: \
            {line}"
        );
    }
    if !recorded.strangers.is_empty() {
        eprintln!("stetfs: if such a process works for the program, --others counts its calls too");
    }
    if calls == marks {
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

/// Says how a program ended, with the end of its output.
fn ended(end: End, output: &str) -> String {
    match output.trim_end() {
        "" => format!("{}, and printed nothing", end.text()),
        said => format!("{}, and printed:\n{}", end.text(), indented(said)),
    }
}

/// Tries the check, or the command that reads, on what the program left without a power cut.
fn try_out(judge: &Judge, recording: &Recording) -> Result<(), Stop> {
    let Some(unfit) = judge.try_out(recording)? else {
        return Ok(());
    };
    let said = |verdict: &Verdict| ended(verdict.end, &verdict.output);
    let failure = match (judge.rule(), unfit) {
        (Rule::Prints, Unfit::Fails(first)) => Failure::new(format!(
            "--read: the command fails on what the program left: it {}",
            said(&first)
        ))
        .advise("it must read what is there when the program has ended, and exit with 0"),
        (Rule::Prints, Unfit::Differs(first, second)) => Failure::new(format!(
            "--read: the command prints two things about the same state:\n{}\nand\n{}",
            indented(first.output.trim_end()),
            indented(second.output.trim_end())
        ))
        .advise("it must leave out what differs each time, such as times of access"),
        (_, Unfit::Differs(first, second)) => Failure::new(format!(
            "the check judges the same state differently: the first time it {}\nthe second time \
                it {}",
            said(&first),
            said(&second)
        )),
        (_, Unfit::Fails(first)) => {
            let strangers = judge.strangers();
            let refused = strangers.first().map_or_else(String::new, |stranger| {
                format!("\nrefused, because the check did not start the process: {stranger}")
            });
            let advice = match (strangers.is_empty(), first.end) {
                (false, _) => {
                    "if that process works for the check, --others lets it change the state too"
                }
                (true, End::TimedOut) => "--check-timeout gives it more time",
                (true, _) => {
                    "the check must accept the state that the program leaves when it ends, with \
                        all its promises"
                }
            };
            let why = format!(
                "the check fails without any power cut: it {}{refused}",
                said(&first)
            );
            Failure::new(why).advise(advice)
        }
    };
    Err(Stop::Check(failure))
}

/// Tells the judges what the run shows without a power cut, where that is the rule.
fn teach(judges: &[Judge], recording: &Recording) -> Result<(), Stop> {
    if let Some(shown) = judge::teach(judges, recording)? {
        let each = match &*shown {
            Shown::Files(_) => {
                ", file by file; for files that belong together give --read CMD or --check CMD"
            }
            Shown::Printed(_) => "",
        };
        eprintln!(
            "stetfs: a power cut must show what one of {} moments of the run shows{each}",
            shown.moments()
        );
    }
    Ok(())
}

/// An exploration of a recording.
struct Run<'a> {
    args: &'a Crash,
    recording: &'a Recording,
    judges: &'a [Judge],
    verdicts: &'a Verdicts,
    resumed: Option<&'a Resumed>,
    fresh: &'a Image,
}

impl Run<'_> {
    /// Runs the check twice on what the program left without a power cut.
    fn without_a_cut(&self) -> Result<(), Stop> {
        let begin = Instant::now();
        try_out(&self.judges[0], self.recording)?;
        let once = begin.elapsed() / 2;
        if once >= SLOW && self.args.program.save.is_none() {
            eprintln!(
                "stetfs: the check takes {:.1} s, and runs on each different state: -j N runs N at \
                    once, --budget 10m ends it early, --resume FILE goes on later, and --save with \
                    --shard divides it among machines",
                once.as_secs_f64()
            );
        }
        Ok(())
    }

    /// Adds the models that were not begun to the report.
    fn not_looked_at(&self, report: &mut Report) {
        for model in &self.args.program.model[report.models.len()..] {
            let nothing = Explored::nothing(model.to_string(), Early::Stopped);
            report
                .models
                .push(OfModel::new(self.recording, nothing, None));
        }
    }

    fn explore(&self, shard: Shard, report: &mut Report) -> Result<(), Stop> {
        teach(self.judges, self.recording)?;
        let args = self.args;
        let (looked, failed) = (Mutex::default(), Mutex::new(None));
        for model in &args.program.model {
            let bar = bar(&model.to_string());
            let court = Court {
                judges: self.judges,
                verdicts: self.verdicts,
                looked: &looked,
                shard,
                limits: Limits {
                    time: args.budget.time,
                    states: args.budget.states,
                    findings: ENOUGH,
                },
                listener: &|progress| tell(&bar, &progress),
                said: &|| {
                    if let Some(resumed) = self.resumed
                        && let Err(error) = resumed.keep_sometimes(self.verdicts)
                    {
                        *failed.lock() = Some(error);
                    }
                },
            };
            let found = self.under(model, self.recording, &court)?;
            let stopped = found.early == Some(Early::Stopped);
            let mutants = if args.program.mutate && !stopped {
                Some(self.mutate(model, &court)?)
            } else {
                None
            };
            bar.finish_and_clear();
            if let Some(error) = failed.lock().take() {
                return Err(Stop::Failed(ending::told(&error)));
            }
            let of_model = OfModel::new(self.recording, found, mutants.as_deref());
            report.models.push(of_model);
            report.judged = looked.lock().len();
            if stopped {
                return Err(Stop::Stopped);
            }
        }
        Ok(())
    }

    /// Explores what a program did under a model.
    fn under(
        &self,
        model: &Under,
        recording: &Recording,
        court: &Court<'_>,
    ) -> Result<Explored, Stop> {
        let seed = self.args.seed;
        Ok(match model {
            Under::Rules(model) => Explorer {
                recording,
                model: *model,
                court,
                effort: Effort {
                    seed,
                    ..Effort::default()
                },
            }
            .run()?,
            Under::System(system) => blocks::Explorer {
                recording,
                system: &**system,
                fresh: &of_system(&**system, self.fresh).map_err(Stop::Failed)?,
                court,
                seed,
            }
            .run()?,
        })
    }

    fn mutate(&self, model: &Under, court: &Court<'_>) -> Result<Vec<(usize, Noticed)>, Stop> {
        let court = Court {
            // Mutants have states of their own; do not count them as the recording's.
            looked: &Mutex::default(),
            limits: Limits {
                findings: 1,
                ..court.limits
            },
            ..*court
        };
        explore::mutate(self.recording, &|without| {
            let found = self.under(model, without, &court)?;
            Ok(match (found.counts.failing, found.early) {
                (1.., _) => Noticed::Yes,
                (0, None) => Noticed::No,
                (0, Some(_)) => Noticed::NotSoFar,
            })
        })
    }
}

/// Makes an empty volume for a system.
fn of_system(system: &dyn System, fresh: &Image) -> Result<Image> {
    let bytes = system.volume_bytes();
    bytes.map_or_else(|| Ok(fresh.clone()), place::volume)
}

fn tell(bar: &ProgressBar, progress: &Progress<'_>) {
    let counts = progress.counts;
    bar.set_length(usize_as_u64(counts.moments_all));
    bar.set_position(usize_as_u64(counts.moments));
    bar.set_message(format!(
        "{} states, {} judged, {} findings",
        counts.states,
        counts.states - counts.folded,
        progress.findings
    ));
}

fn bar(model: &str) -> ProgressBar {
    let form = "{prefix} {bar:20} {pos}/{len} moments, {msg}";
    let bar = progress::bar(form, None, false);
    bar.set_prefix(model.to_owned());
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

/// Returns what the power cut of a case leaves: the model, the tree, and how many calls had
/// returned.
fn left(
    case: &str,
    (recording, fresh): (&Recording, &Image),
    seed: u64,
) -> Result<(Under, Tree, usize)> {
    let name = case.split(':').next().unwrap_or_default();
    let under: Under = name.parse().map_err(Failure::new)?;
    let (tree, calls) = match &under {
        Under::Rules(_) => {
            let (model, cut) = parse_case(case, recording).map_err(Failure::new)?;
            let arrangement = model.arrange(recording);
            let end = arrangement.ends[cut.calls];
            (arrangement.tree(recording, &cut.there, end), cut.calls)
        }
        Under::System(system) => {
            let fresh = of_system(&**system, fresh)?;
            let replayed = blocks::replay(&**system, case, (recording, &fresh), seed);
            replayed.map_err(|e| ending::told(&e))?
        }
    };
    Ok((under, tree, calls))
}

/// `stetfs crash --replay FILE#CASE`
pub(super) fn replay(args: &CrashProgram, case: &str, seed: u64) -> Result<ExitCode> {
    let (file, case) = case.rsplit_once('#').unwrap_or((case, ""));
    let saved = Saved::read(Path::new(file)).during(|| file.to_owned())?;
    let recording = &saved.recording;
    let check = check(args, Some(&saved))?;
    let place = Place::new(args.dir.as_deref())?;
    let fresh = place::fresh(saved.size)?;
    let (model, tree, calls) = left(case, (recording, &fresh), seed)?;
    let interrupt = Interrupt::listen()?;
    let shared = (1, &Arc::default(), &interrupt.stop);
    let judges = place.judges(&check, &fresh, shared)?;
    let tried = match check.rule {
        Rule::Holds => Ok(()),
        Rule::Prints | Rule::Files => try_out(&judges[0], recording),
    };
    match tried.and_then(|()| teach(&judges, recording)) {
        Err(Stop::Stopped) => return Ok(interrupted(&interrupt)),
        Err(Stop::Check(why)) => return Err(why.exit(EXIT_CHECK)),
        Err(Stop::Failed(why)) => return Err(why),
        Ok(()) => {}
    }
    let judge = &judges[0];
    let marks: Vec<&str> = recording.marks(calls).collect();
    let verdict = match judge.ask(&tree, &marks) {
        Err(judge::Error::Stopped) => return Ok(interrupted(&interrupt)),
        other => other.map_err(told)?,
    };
    output::line(format_args!(
        "{model}, power cut after {calls} calls, {} promises: the check {}",
        marks.len(),
        verdict.end.text()
    ))?;
    if !verdict.output.is_empty() {
        output::line(indented(verdict.output.trim_end()))?;
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
