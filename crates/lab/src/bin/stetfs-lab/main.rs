//! `stetfs-lab`, which `stetfs lab` runs: the papers' experiments with a command line. It fails
//! when an experiment could not be run. A claim of a paper that does not hold is a result like any
//! other.
#![forbid(unsafe_code)]

mod ask;
mod below;
mod ground;
mod kernel;
mod output;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use clap::{CommandFactory, Parser, Subcommand, ValueHint};
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;
use stetfs_lab::experiment::kind::Experiment;
use stetfs_lab::experiment::report::Report;
use stetfs_lab::experiment::setting::Setting;
use stetfs_lab::experiment::{EXPERIMENTS, find};
use stetfs_lab::figure;
use stetfs_lab::ground::Ground;

use output::{bar, is_stdout, json_to, line, numbers};

/// Run the papers' experiments: systems side by side, with the paper's figures beside ours
///
/// Without an experiment it lists them. Each figure compares journaling schemes on the same machine
/// with the same workload, in virtual time on simulated media, where equal seeds give equal results
/// on every machine. It says which of the paper's claims are reached here; docs/CLAIMS.md has what
/// became of each.
#[derive(Debug, Parser)]
#[command(name = "stetfs-lab", version, after_long_help = help())]
#[command(args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Experiments, or `all`
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// Factor on the paper's data sets (default: the experiment's own, see the list)
    #[arg(long, value_name = "FACTOR")]
    scale: Option<f64>,
    /// Run only this seed of contents, orders and choices (default: 1; for a figure, all of its
    /// seeds)
    #[arg(long)]
    seed: Option<u64>,
    /// Leave out experiments in real time (dj-fig5)
    #[arg(long)]
    no_real_time: bool,
    /// Write each report (ID.json) and its plots (SVG and PNG) into this directory, made if missing
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    out: Option<PathBuf>,
    /// Write the reports as JSON, to a file or to - (standard output, in place of the tables)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    json: Option<PathBuf>,
    /// Print the names of experiments and questions, options, and what `ground --only` takes, one a
    /// line, and do nothing else: for shells
    #[arg(long = "ids", hide = true)]
    names: bool,
    /// Write the manual page to this file, its parts beside it, and do nothing else
    #[arg(long, value_name = "FILE", hide = true)]
    man_page: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(ask::Ask),
    Ground(ground::AllOnOne),
    Kernel(kernel::Control),
    Below(below::Beneath),
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has gone away (`| head`).
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stetfs-lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    kind == Some(io::ErrorKind::BrokenPipe)
}

fn run(args: &Args) -> Result<()> {
    match &args.command {
        Some(Command::Run(ask)) => return ask.run(),
        Some(Command::Ground(ground)) => return ground.run(),
        Some(Command::Kernel(kernel)) => return kernel.run(),
        Some(Command::Below(below)) => return below.run(),
        None => {}
    }
    if let Some(file) = &args.man_page {
        return man_pages(file);
    }
    if args.names {
        let command = Args::command();
        let questions = command
            .get_subcommands()
            .map(|question| question.get_name());
        let names = EXPERIMENTS.iter().map(|e| e.id).chain(questions);
        names.into_iter().try_for_each(line)?;
        return words(&command)?.iter().try_for_each(line);
    }
    if args.ids.is_empty() {
        return list(args);
    }
    let experiments = chosen(&args.ids)?;
    if let Some(dir) = &args.out {
        fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    }
    let to_stdout = is_stdout(args.json.as_ref());
    let mut reports = Vec::new();
    for experiment in experiments {
        let report = measure(args, experiment)?;
        if !to_stdout {
            show(&report)?;
        }
        if let Some(dir) = &args.out {
            let plots = keep(&report, dir)?;
            if !to_stdout {
                line(format_args!("\n{plots}"))?;
            }
        }
        reports.push(report);
    }
    match &args.json {
        None => Ok(()),
        Some(path) => json_to(path, &All { reports: &reports }),
    }
}

/// Writes the manual page to a file, and beside it one for each question: `stetfs-lab-run.1`.
fn man_pages(file: &Path) -> Result<()> {
    let write = |path: &Path, command: clap::Command| {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page)?;
        fs::write(path, page).with_context(|| path.display().to_string())
    };
    let command = Args::command();
    let section = file.extension().unwrap_or_default().to_string_lossy();
    for question in command.get_subcommands() {
        let name = format!("{}-{}", command.get_name(), question.get_name());
        let path = file.with_file_name(format!("{name}.{section}"));
        // A command keeps its name for as long as the program runs.
        write(&path, question.clone().name(&*name.leak()))?;
    }
    write(file, command)
}

#[derive(Serialize)]
struct All<'a> {
    reports: &'a [Report],
}

#[derive(Serialize)]
struct Listed {
    id: &'static str,
    title: &'static str,
    paper: &'static str,
    scale: f64,
    real_time: bool,
}

fn list(args: &Args) -> Result<()> {
    let listed = |e: &Experiment| Listed {
        id: e.id,
        title: e.title,
        paper: e.paper,
        scale: e.scale,
        real_time: e.has_real_time,
    };
    if let Some(path) = &args.json {
        let all: Vec<_> = EXPERIMENTS.iter().map(listed).collect();
        return json_to(path, &all);
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["experiment", "scale", "what it shows"]);
    for e in EXPERIMENTS.iter() {
        table.add_row([e.id.to_owned(), e.scale.to_string(), e.title.to_owned()]);
    }
    line(table.trim_fmt())?;
    line("\nstetfs lab ID runs one; stetfs lab --help has examples")
}

fn chosen(ids: &[String]) -> Result<Vec<&'static Experiment>> {
    if ids.iter().any(|id| id == "all") {
        return Ok(EXPERIMENTS.iter().collect());
    }
    let one = |id: &String| {
        find(id).ok_or_else(|| {
            let names: Vec<_> = EXPERIMENTS.iter().map(|e| e.id).collect();
            anyhow!(
                "there is no experiment {id}\n  -> there are {}, and `all`",
                names.join(", ")
            )
        })
    };
    ids.iter().map(one).collect()
}

fn measure(args: &Args, experiment: &Experiment) -> Result<Report> {
    let bar = bar();
    let report = experiment.run(&Setting {
        seed: args.seed.unwrap_or(1),
        is_alone: args.seed.is_some(),
        scale: args.scale.unwrap_or(experiment.scale),
        real_time: experiment.has_real_time && !args.no_real_time,
        progress: &|what, done, of| {
            bar.set_length(of);
            bar.set_position(done);
            bar.set_message(what.to_owned());
        },
        ..Setting::default()
    });
    bar.finish_and_clear();
    report.context(experiment.id)
}

/// Returns the options of all commands that are for users, and the names of the ground.
fn words(command: &clap::Command) -> Result<BTreeSet<String>> {
    let commands = std::iter::once(command).chain(command.get_subcommands());
    let options = commands.flat_map(clap::Command::get_arguments);
    let options = options.filter(|option| !option.is_hide_set());
    let options = options.filter_map(|option| Some(format!("--{}", option.get_long()?)));
    let ground = Ground::whole("", 1)?;
    let media = ground.media.iter().map(|place| &place.name);
    let workloads = ground.workloads.iter().map(|job| &job.name);
    let systems = ground.systems.iter().map(|system| &system.name);
    let names = media.chain(workloads).chain(systems).cloned();
    Ok(options.chain(names).collect())
}

fn show(report: &Report) -> Result<()> {
    line(format_args!(
        "{}: {}\n{}; scale {}, seed {}\n",
        report.experiment, report.title, report.paper, report.scale, report.seed
    ))?;
    for (name, what) in &report.setup {
        line(format_args!("{name}: {what}"))?;
    }
    for table in &report.tables {
        line(format_args!("\n{}", table.title))?;
        line(numbers(table).trim_fmt())?;
    }
    line("")?;
    let mut checks = Table::new();
    checks.load_preset(presets::NOTHING);
    checks.set_content_arrangement(ContentArrangement::Dynamic);
    checks.set_header(["what the paper says", "paper", "here", ""]);
    for check in &report.checks {
        let judged = if check.is_reached() {
            check.judged()
        } else {
            check.judged().to_uppercase()
        };
        checks.add_row([&check.claim, &check.said(), &check.ours, &judged]);
    }
    line(checks.trim_fmt())?;
    for check in &report.checks {
        if let Some(why) = &check.why {
            let verdict = check.verdict.name();
            line(format_args!("\n{}: {verdict}: {why}", check.claim))?;
        }
        if let Some(what) = &check.fitted {
            line(format_args!("\n{}: fitted: {what}", check.claim))?;
        }
    }
    for note in &report.notes {
        line(format_args!("\n{note}"))?;
    }
    Ok(())
}

/// Writes a report and its plots; returns a line that says where.
fn keep(report: &Report, dir: &Path) -> Result<String> {
    let file = dir.join(format!("{}.json", report.experiment));
    json_to(&file, report)?;
    if !report.cells.is_empty() {
        let text = figure::csv(&report.cells, report.seed)?;
        fs::write(file.with_extension("csv"), text)?;
    }
    let plots = stetfs_chart::write_all(&report.charts, dir)?;
    let files: Vec<_> = std::iter::once(file)
        .chain(plots)
        .map(|f| f.display().to_string())
        .collect();
    Ok(format!("written: {}", files.join(" ")))
}

/// Lists the experiments and examples, for the help.
fn help() -> String {
    let width = EXPERIMENTS.iter().map(|e| e.id.len()).max().unwrap_or(0);
    let lines: Vec<_> = EXPERIMENTS
        .iter()
        .map(|e| format!("  {:width$}  {} (scale {})", e.id, e.title, e.scale))
        .collect();
    format!(
        "\
Experiments:
{}

A figure runs its seeds and shows means with half of their 95 % interval. It prints the `stetfs \
lab run` command that asks the same. A claim is reached when the interval meets the paper's bound \
within its tolerance, and missed otherwise: then docs/CLAIMS.md says what a sweep shows. A claim \
is \"fitted\" when a part of the figure was chosen to fit what it is compared with.

Exit codes: 0 it ran, whether the paper's claims are reached or not; 1 it could not run.

Examples:
  stetfs lab                                       the list
  stetfs lab shortcut-example                      in a second
  stetfs lab spindle-commits --seed 1              one seed alone, sooner
  stetfs lab all --out report                      tables, and JSON, SVG and PNG in report/
  stetfs lab shortcut-fig4 --scale 1               the paper's own sizes
  stetfs lab run --help                            a question of your own
  stetfs lab shortcut-fig5 --json - | jq '.reports[].checks[] | select(.verdict != \"reached\")'",
        lines.join("\n")
    )
}
