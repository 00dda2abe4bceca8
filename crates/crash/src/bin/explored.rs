//! Explores power cuts, keeps the reports in `results/explored`, and makes the tables of
//! `results/explored.md` from them. See `--help`.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use parking_lot::Mutex;
use stetfs_crash::campaign::{Budget, Campaign, MINIMIZED, Progress};
use stetfs_crash::exploration::Resumed;
use stetfs_crash::explored::{Kept, Row, find, places};
use stetfs_testkit::host::run;

const HELP: &str = "usage: explored [--budget STATES|TIME] [--jobs N] [--resume DIR] [ROW...|all]
Explores the rows whose names contain these words (`jbd2`, `short`, `dj-journal-pairs`; `all` \
takes days) and keeps their reports in results/explored:
first every workload once, where syncs have returned, however long that takes, then all in depth \
by turns, within the budget. Then, and without a
row at once, makes the tables of results/explored.md. In the directory of the sources. With \
--resume what is done of a row is kept in that directory,
and the same command goes on.";

#[derive(Default)]
struct Args {
    budget: Option<String>,
    jobs: Option<usize>,
    resume: Option<PathBuf>,
    rows: Vec<String>,
}

fn main() -> Result<()> {
    let Some(args) = parse(std::env::args().skip(1))? else {
        println!("{HELP}");
        return Ok(());
    };
    let (document, store) = places(Path::new("."));
    let text = fs::read_to_string(&document)
        .context("results/explored.md: explored runs in the directory of the sources")?;
    for row in find(&args.rows)? {
        let kept = explore(&row, &args).with_context(|| row.id.clone())?;
        store.write(&row.id, &kept)?;
        let (counts, seconds) = (
            kept.exploration.report.counts,
            kept.exploration.report.seconds,
        );
        println!(
            "{}: {} workloads, {} unfinished, {} of them never ran, {} violations, {seconds:.0} s",
            row.id,
            counts.workloads,
            counts.workloads_unfinished,
            kept.never_ran().unwrap_or_default(),
            counts.violations
        );
    }
    let made = store.render(&text)?;
    if made != text {
        fs::write(&document, made)?;
        println!("{}: changed", document.display());
    }
    Ok(())
}

/// Returns `None` when help is wanted.
fn parse(mut words: impl Iterator<Item = String>) -> Result<Option<Args>> {
    let mut args = Args::default();
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} what?"));
        match word.as_str() {
            "--budget" => args.budget = Some(value()?),
            "--jobs" => args.jobs = Some(value()?.parse().context("--jobs")?),
            "--resume" => args.resume = Some(value()?.into()),
            "--help" | "-h" => return Ok(None),
            option if option.starts_with('-') => bail!("what is {option}?\n{HELP}"),
            _ => args.rows.push(word),
        }
    }
    Ok(Some(args))
}

fn explore(row: &Row, args: &Args) -> Result<Kept> {
    let budget = match &args.budget {
        Some(text) => text.parse().map_err(|why: String| anyhow!(why))?,
        None => Budget::default(),
    };
    let plan = row.plan()?;
    let file = args.resume.as_ref().map(|dir| dir.join(&row.id));
    let resumed = file.as_deref().map(|file| go_on(file, &plan)).transpose()?;
    let keep = |done: &_| resumed.as_ref().map_or(Ok(()), |r| r.keep(&plan, done));
    let told = Mutex::new(Instant::now());
    let usual = || std::thread::available_parallelism().map_or(1, usize::from);
    let fresh = plan.target.contents()?;
    let campaign = Campaign {
        effort: plan.effort(),
        budget,
        budget_behind_first: true,
        by_turns: true,
        jobs: args.jobs.unwrap_or_else(usual),
        minimized: MINIMIZED,
        done: resumed.as_ref().map(|r| r.done(&plan)).unwrap_or_default(),
        keeper: Some(&keep),
        ..Campaign::new(plan.target.clone(), fresh, plan.workloads.clone())
    };
    let report = campaign.run(&|progress| tell(&row.id, &told, progress))?;
    if let Some(file) = file.filter(|_| report.counts.workloads_unfinished == 0) {
        fs::remove_file(file)?;
    }
    Ok(Kept::new(
        commit()?,
        args.budget.clone(),
        plan.found(report),
    ))
}

/// Opens the stored progress of a row. Begins anew if other code made it.
fn go_on(file: &Path, plan: &stetfs_crash::exploration::Plan) -> Result<Resumed> {
    if let Some(dir) = file.parent() {
        fs::create_dir_all(dir)?;
    }
    let plans = std::slice::from_ref(plan);
    Resumed::open(file, plans).or_else(|error| {
        println!("{error:#}: it begins anew");
        fs::remove_file(file)?;
        Resumed::open(file, plans)
    })
}

/// Prints the progress, at most once a minute.
fn tell(id: &str, told: &Mutex<Instant>, progress: Progress) {
    let mut told = told.lock();
    if told.elapsed() >= Duration::from_secs(60) {
        *told = Instant::now();
        let Progress {
            counts,
            done,
            total,
            not_run,
        } = progress;
        println!(
            "{id}: {done} of {total} turns, {not_run} workloads have not run, {} violations",
            counts.violations
        );
    }
}

/// Returns the commit that is checked out, and says so if `crates` has changed since.
fn commit() -> Result<String> {
    let git = |args: &[&str]| -> Result<String> {
        let out = run("git", args)?;
        Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
    };
    let changed = git(&["status", "--porcelain", "--", "crates"])?;
    let head = git(&["rev-parse", "--short=7", "HEAD"])?;
    Ok(if changed.is_empty() {
        head
    } else {
        format!("{head} and changes")
    })
}
