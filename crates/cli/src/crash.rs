//! `stetfs crash`: the lab's exploration of power cuts with a command line. Exit codes: 0 nothing
//! is wrong, 1 violations, 2 it could not be run.

use std::fs;
use std::io::{self, IsTerminal};
use std::num::NonZero;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use stetfs_crash::campaign::{Campaign, Done, MINIMIZED, Progress};
use stetfs_crash::case::Case;
use stetfs_crash::exploration::{Explorations, Plan, Resumed};
use stetfs_crash::report::Report;
use stetfs_crash::sharing::Shard;
use stetfs_crash::states::Effort;
use stetfs_crash::target::Target;
use stetfs_crash::workload::Workload;
use stetfs_crash::workloads::sequences::Sample;
use stetfs_crash::workloads::{Choice, script::Script};
use stetfs_format::width::{must_fit, nearest_f64, usize_as_u64};
use stetfs_powercut::model::MODELS;
use stetfs_powercut::scheme::Scheme;
use stetfs_testkit::world::World;
use stetfs_testkit::world::model::Model;
use stetfs_testkit::world::op::Op;
use stetfs_testkit::world::text::VERBS;

mod findings;
mod place;
mod program;
mod shown;

use crate::args::{Crash, CrashCommand, CrashMerge, Ops};
use crate::failure::{Failure, Result};
use crate::output;

/// Violations were found.
const EXIT_VIOLATIONS: u8 = 1;
/// It could not be run.
const EXIT_NOT_RUN: u8 = 2;
/// It was interrupted, by a signal whose number is added.
const EXIT_INTERRUPTED: u8 = 128;

/// Workloads with violations after which a run ends.
const ENOUGH: usize = 10;

pub(crate) fn run(args: &Crash) -> Result<ExitCode> {
    let done = match (&args.command, &args.replay) {
        (Some(CrashCommand::Merge(args)), _) => merge(args),
        (Some(CrashCommand::Mark(args)), _) => program::mark(args),
        (None, Some(case)) if program::is_case(case) => program::replay(&args.program, case),
        (None, Some(_)) if args.program.shell => Err(Failure::new(
            "--shell is for the case of a program, FILE#CASE",
        )),
        (None, Some(case)) => replay(case),
        (None, None) if !args.program.words.is_empty() || args.program.recording.is_some() => {
            program::run(args)
        }
        (None, None) if args.program.check.is_some() => Err(Failure::new(
            "--check judges a program, and there is none",
        )
        .advise("name it behind --, as in: stetfs crash --check ./check.sh -- ./program {dir}")),
        (None, None) => explore(args),
    };
    done.map_err(|failure| match failure.code {
        program::EXIT_CHECK => failure,
        _ => failure.exit(EXIT_NOT_RUN),
    })
}

fn exit(violations: bool) -> ExitCode {
    ExitCode::from(if violations { EXIT_VIOLATIONS } else { 0 })
}

/// The lab's errors are chains of contexts.
fn told(error: &anyhow::Error) -> Failure {
    Failure::new(format!("{error:#}"))
}

fn replay(case: &str) -> Result<ExitCode> {
    let case: Case = case.parse().map_err(|e| told(&e))?;
    let replayed = case.replay(None).map_err(|e| told(&e))?;
    output::line(format_args!(
        "on {}:\n{}",
        case.target,
        indented(&case.workload.text())
    ))?;
    let cuts = case.cut.iter().chain(&case.nested);
    for (cut, left) in cuts.zip(&replayed.left) {
        output::line(format_args!("power cut after {} changes; {left}", cut.at))?;
    }
    match (&replayed.wrong, replayed.state) {
        (Some((fault, why)), _) => output::line(format_args!("VIOLATION, {fault}: {why}"))?,
        (None, Some(state)) => {
            output::line(format_args!("right: the state after {state} operations"))?;
        }
        (None, None) => output::line("right: every answer is the model's")?,
    }
    Ok(exit(replayed.wrong.is_some()))
}

fn explore(args: &Crash) -> Result<ExitCode> {
    let plans: Vec<Plan> = targets(args)?
        .into_iter()
        .map(|target| plan(args, target))
        .collect::<Result<_>>()?;
    if args.list {
        // The modes of a scheme have the same.
        for workload in plans.first().iter().flat_map(|plan| &plan.workloads) {
            output::line(format_args!("{}: {workload}", workload.title()))?;
        }
        return Ok(exit(false));
    }
    let resumed = args
        .resume
        .as_ref()
        .map(|file| Resumed::open(file, &plans).map_err(|e| told(&e).advise(ANOTHER_FILE)))
        .transpose()?;
    let interrupt = Interrupt::listen()?;
    let explorations = plans
        .iter()
        .map(|plan| Ok(plan.found(campaign(args, plan, resumed.as_ref(), &interrupt)?)))
        .collect::<Result<_>>()?;
    let code = show(&Explorations::new(explorations), args.json.as_deref())?;
    Ok(match interrupt.signal() {
        Some(signal) if code == exit(false) => ExitCode::from(EXIT_INTERRUPTED + signal),
        _ => code,
    })
}

/// What can be done where a file is of another exploration.
const ANOTHER_FILE: &str = "go on with the command that the file is of, or name another file";

fn merge(args: &CrashMerge) -> Result<ExitCode> {
    let first = args.files.first().and_then(|file| fs::read(file).ok());
    if first.is_some_and(|text| is_of_program(&text)) {
        return program::merge(args);
    }
    if args.junit.is_some() {
        return Err(Failure::new("--junit is for reports on a program"));
    }
    let merged = Explorations::merge(&args.files).map_err(|e| told(&e))?;
    show(&merged, args.json.as_deref())
}

/// Whether a report is on a program.
fn is_of_program(report: &[u8]) -> bool {
    let report: Option<serde_json::Value> = serde_json::from_slice(report).ok();
    report.is_some_and(|report| report.get("program").is_some())
}

/// Shows explorations, or writes them as JSON; the exit code.
fn show(all: &Explorations, json: Option<&Path>) -> Result<ExitCode> {
    if let Some(path) = json {
        output::json_to(path, all)?;
    }
    let explorations = &all.explorations;
    if json.is_none_or(|path| path.as_os_str() != "-") {
        output::line(shown::table(explorations))?;
        for exploration in explorations {
            let violations = &exploration.report.violations;
            for (n, violation) in violations.iter().enumerate() {
                output::line(shown::violation(n + 1, violation))?;
            }
        }
    }
    Ok(exit(
        explorations.iter().any(|e| e.report.counts.violations > 0),
    ))
}

/// The scheme in each mode that was asked for.
fn targets(args: &Crash) -> Result<Vec<Target>> {
    let more: String = args.options.iter().map(|o| format!(",{o}")).collect();
    let media = args.media.iter().map(|medium| format!("@{medium}"));
    let volume: String = std::iter::once(args.volume.clone()).chain(media).collect();
    let target = |mode: &str| -> Result<Target> {
        let text = format!("{} {mode}{more} {volume}", args.scheme);
        text.parse().map_err(|e| told(&e))
    };
    match args.data.as_deref() {
        None => Ok(vec![target("-")?]),
        Some("all") => {
            let modes = target("-")?.scheme.modes.iter();
            modes.map(|mode| target(mode.name())).collect()
        }
        Some(mode) => Ok(vec![target(mode)?]),
    }
}

/// The workloads that were asked for; without any wish, all sequences of one operation.
fn plan(args: &Crash, target: Target) -> Result<Plan> {
    let sample = Sample {
        pairs: args.share,
        triples: args.triples,
        seed: args.seed,
    };
    let nothing =
        args.ops.is_empty() && args.random == 0 && args.workload.is_empty() && !args.scripts;
    let (mut lengths, mut groups, mut ace) = (Vec::new(), false, Vec::new());
    for ops in &args.ops {
        match ops {
            Ops::Own(length) => lengths.push(*length),
            Ops::Groups => groups = true,
            Ops::Ace(bounds) => ace.push(*bounds),
        }
    }
    let choice = Choice {
        lengths: if nothing { vec![1] } else { lengths },
        groups,
        ace,
        sample,
        random: args.random,
        scripts: args.scripts,
        orders: args.order.clone(),
    };
    let effort = Effort {
        seed: args.seed,
        ..Effort::default()
    };
    let own = args.workload.iter().map(|file| workload(file, &target));
    let own = own.collect::<Result<_>>()?;
    let shard = args.shard.unwrap_or(Shard::WHOLE);
    Ok(Plan::new(target, effort, choice, own, shard))
}

/// A workload in a file, or a script by its name.
fn workload(file: &Path, target: &Target) -> Result<Workload> {
    let name = file.display().to_string();
    let script = Script::parse(&name).filter(|_| !file.exists());
    let workload = match script {
        Some(script) => script.workload(target.volume.profile()),
        None => {
            let text = fs::read_to_string(file).map_err(|e| Failure::from(e).context(&name))?;
            Workload::parse(&name, &text).map_err(|e| told(&e).context(&name))?
        }
    };
    let mut model = Model::new(target.rules());
    let mut ops = workload.setup.iter().chain(&workload.ops);
    // Nothing would be looked at.
    let is_refused = |op: &Op| {
        let answer = model.apply(op);
        matches!(op, Op::GroupWrite { .. }) && answer == Err(Errno::OPNOTSUPP)
    };
    if ops.any(is_refused) {
        let why = format!("{name} has groups of writes, and {target} can have none");
        return Err(Failure::new(why).advise("they need data=journal or atomic=all"));
    }
    Ok(workload)
}

fn campaign(
    args: &Crash,
    plan: &Plan,
    resumed: Option<&Resumed>,
    interrupt: &Interrupt,
) -> Result<Report> {
    let name = plan.target.to_string();
    let turns = plan.workloads.iter().map(Effort::turns);
    let bar = bar(&name, usize_as_u64(turns.sum()));
    let fresh = plan.target.contents();
    let keep = |done: &Done| resumed.map_or(Ok(()), |resumed| resumed.keep(plan, done));
    let campaign = Campaign {
        fresh: fresh.map_err(|e| told(&e).context(format!("making a volume for {name}")))?,
        target: plan.target.clone(),
        workloads: plan.workloads.clone(),
        effort: plan.effort(),
        budget: args.budget,
        budget_behind_first: false,
        by_turns: true,
        jobs: args
            .jobs
            .or_else(|| std::thread::available_parallelism().ok())
            .map_or(1, NonZero::get),
        enough: ENOUGH,
        minimized: MINIMIZED,
        front: None,
        listener: Some(&|violation| bar.suspend(|| eprintln!("{}", shown::found(violation)))),
        done: resumed
            .map(|resumed| resumed.done(plan))
            .unwrap_or_default(),
        keeper: Some(&keep),
        stop: Some(&interrupt.stop),
    };
    let report = campaign.run(&|progress| tell(&bar, progress));
    bar.finish_and_clear();
    report.map_err(|e| told(&e).context(name))
}

/// The first SIGINT, SIGTERM or SIGHUP ends an exploration when what is at hand is kept, the second
/// at once.
struct Interrupt {
    stop: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    fn listen() -> Result<Self> {
        let (stop, signal) = (Arc::default(), Arc::default());
        // What whoever started this has it ignore, such as nohup(1), stays ignored.
        let heard = [SIGINT, SIGTERM, SIGHUP].into_iter();
        for number in heard.filter(|number| !is_ignored(*number)) {
            flag::register_conditional_default(number, Arc::clone(&stop))?;
            flag::register(number, Arc::clone(&stop))?;
            flag::register_usize(number, Arc::clone(&signal), must_fit(number))?;
        }
        Ok(Self { stop, signal })
    }

    fn signal(&self) -> Option<u8> {
        let signal = self.signal.load(Ordering::SeqCst);
        u8::try_from(signal).ok().filter(|signal| *signal > 0)
    }
}

/// Whether a signal is ignored: a bit of `SigIgn` in /proc/self/status (proc_pid_status(5)).
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.unwrap_or(0) >> (signal - 1) & 1 == 1
}

fn bar(name: &str, turns: u64) -> ProgressBar {
    let target = match io::stderr().is_terminal() {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    };
    let style = "{prefix} {bar:20} {pos}/{len} turns, {msg}, {eta} left";
    let bar = ProgressBar::with_draw_target(Some(turns), target);
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar.set_prefix(name.to_owned());
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

fn tell(bar: &ProgressBar, progress: Progress) {
    let counts = progress.counts;
    let states = counts.states + counts.nested;
    let rate = nearest_f64(states) / bar.elapsed().as_secs_f64().max(1e-3);
    bar.set_position(usize_as_u64(progress.done));
    let not_run = match progress.not_run {
        0 => String::new(),
        n => format!("{n} workloads have not run yet, "),
    };
    bar.set_message(format!(
        "{not_run}{rate:.0} states/s, {} violations",
        counts.violations
    ));
}

fn indented(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(|line| format!("    {line}")).collect();
    lines.join("\n")
}

/// The text form of workloads, for the help.
pub(crate) fn help() -> String {
    let width = VERBS
        .iter()
        .map(|v| v.name.len() + v.words.len() + 1)
        .max()
        .unwrap_or(0);
    let verbs = VERBS.iter().map(|v| {
        let usage = format!("{} {}", v.name, v.words);
        format!("  {usage:width$}  {}", v.does)
            .trim_end()
            .to_owned()
    });
    let scripts: Vec<_> = Script::WRITTEN.iter().map(|s| s.name()).collect();
    let models = MODELS
        .iter()
        .map(|m| format!("  {:14}  {}", m.name, m.about));
    format!(
        "\
Workloads as text, one operation per line or separated by semicolons; # begins a comment:
{}
  FILE is a slot, @0 to @2, or a path, which is then opened for this operation. The lines before
  `begin` are the setup, which is synced and not cut; `setup standard` is that of the sequences.

Scripts: {}, randomN, postmarkN.

Exit codes: 0 no violations, or the program's promises hold; 1 violations; 2 it could not run; \
3 the check fails without a power cut, or not every time; 4 the --budget ended the judging of a \
program early, without findings until then; 129, 130 and 143 it was interrupted by SIGHUP, SIGINT \
or SIGTERM, without violations until then.

Models of file systems, for programs:
{}
  SCHEME[-MODE]   what a scheme of ours recovers: {}

Examples:
  stetfs crash --check ./check.sh -- ./my-program --data {{dir}}
  stetfs crash --model posix,ext4-ordered --check 'test -s {{dir}}/config' -- ./save {{dir}}/config
  stetfs crash --replay /tmp/a.recording#posix:3:1 --shell   look at what a finding has left
  stetfs crash                                     all sequences of one operation
  stetfs crash --data all --ops 2 --jobs 2         all pairs of the core, in each mode
  stetfs crash --random 20 --scripts --budget 10m  long workloads, for ten minutes
  stetfs crash --data journal --ops groups         groups beside each operation
  stetfs crash --scheme null --ops 1               violations, since there is no journal
  stetfs crash --workload mine.txt --json -        your own workload
  stetfs crash --ops 2 --resume pairs.state        after Ctrl-C the same command goes on
  stetfs crash --ops 2 --shard 1/4 --json 1.json   a quarter, on one of four machines
  stetfs crash merge [1-4].json                    the sum of the four reports
  stetfs crash --check ./check.sh --save a.rec -- ./my-program {{dir}}
  stetfs crash --recording a.rec --shard 1/4 --json 1.json   a quarter of its states
  stetfs crash --ops ace2 --shard 1/1000           223 of ACE's sequences of two",
        verbs.collect::<Vec<_>>().join("\n"),
        scripts.join(", "),
        models.collect::<Vec<_>>().join("\n"),
        Scheme::names().collect::<Vec<_>>().join(", "),
    )
}
