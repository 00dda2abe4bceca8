//! `stetfs crash`: explores power cuts. Exit codes: 0 nothing is wrong, 1 violations, 2 it could
//! not run; programs have further ones (`program.rs`).

use std::fs;
use std::num::NonZero;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use indicatif::ProgressBar;
use rustix::io::Errno;
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
use stetfs_format::width::{nearest_f64, usize_as_u64};
use stetfs_powercut::finding::indented;
use stetfs_testkit::world::World;
use stetfs_testkit::world::model::Model;
use stetfs_testkit::world::op::Op;

mod ending;
mod findings;
mod place;
mod program;
mod shown;

use crate::args::crash::{Crash, CrashCommand, CrashMerge, Ops};
use crate::failure::{Failure, Result};
use crate::output;
use crate::progress;
use ending::{EXIT_INTERRUPTED, Interrupt, exit, told};

/// Exit code: it could not run.
const EXIT_NOT_RUN: u8 = 2;
/// A run ends after this many workloads with violations.
const ENOUGH: usize = 10;

pub(crate) fn run(args: &Crash) -> Result<ExitCode> {
    let done = match (&args.command, &args.replay) {
        (Some(CrashCommand::Merge(args)), _) => merge(args),
        (Some(CrashCommand::Mark(args)), _) => program::mark(args),
        (None, Some(case)) if program::is_case(case) => {
            program::replay(&args.program, case, args.seed)
        }
        (None, Some(_)) if args.program.shell => Err(Failure::new(
            "--shell needs the case of a program: --replay FILE#CASE",
        )),
        (None, Some(case)) => replay(case),
        (None, None) if !args.program.words.is_empty() || args.program.recording.is_some() => {
            program::run(args)
        }
        (None, None) if args.program.check.is_some() || args.program.read.is_some() => {
            let advice =
                "give it behind --, as in: stetfs crash --check ./check.sh -- ./program {dir}";
            Err(Failure::new("--check and --read need a program to judge").advise(advice))
        }
        (None, None) => explore(args),
    };
    done.map_err(|failure| match failure.code {
        program::EXIT_CHECK => failure,
        _ => failure.exit(EXIT_NOT_RUN),
    })
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
        // All modes of a scheme have the same workloads.
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

/// Advice if a file belongs to another exploration.
const ANOTHER_FILE: &str = "continue with the command that made the file, or name another file";

fn merge(args: &CrashMerge) -> Result<ExitCode> {
    let first = args.files.first().and_then(|file| fs::read(file).ok());
    if first.is_some_and(|text| is_of_program(&text)) {
        return program::merge(args);
    }
    if args.junit.is_some() {
        return Err(Failure::new("--junit is only for reports on a program"));
    }
    let merged = Explorations::merge(&args.files).map_err(|e| told(&e))?;
    show(&merged, args.json.as_deref())
}

/// True if a report is about a program.
fn is_of_program(report: &[u8]) -> bool {
    let report: Option<serde_json::Value> = serde_json::from_slice(report).ok();
    report.is_some_and(|report| report.get("program").is_some())
}

/// Shows explorations, or writes them as JSON; returns the exit code.
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

/// Returns a target for each mode of the scheme that was asked for.
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

/// Plans the workloads that were asked for; by default, all sequences of one operation.
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

/// Reads a workload from a file, or finds a script by its name.
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
    // A refused write would leave nothing to explore.
    let is_refused = |op: &Op| {
        let answer = model.apply(op);
        matches!(op, Op::GroupWrite { .. }) && answer == Err(Errno::OPNOTSUPP)
    };
    if ops.any(is_refused) {
        let why = format!("workload {name} has groups of writes, which {target} cannot run");
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

fn bar(name: &str, turns: u64) -> ProgressBar {
    let form = "{prefix} {bar:20} {pos}/{len} turns, {msg}, {eta} left";
    let bar = progress::bar(form, Some(turns), false);
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
