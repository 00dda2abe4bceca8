//! Runs experiments, keeps their reports in `results/reports`, and makes the tables of
//! `docs/LAB.md` and `docs/CLAIMS.md`, and the plots of claims, from all reports there. See
//! `--help`.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use stetfs_lab::cell;
use stetfs_lab::claims::Claims;
use stetfs_lab::experiment::find;
use stetfs_lab::experiment::kind::Experiment;
use stetfs_lab::experiment::stored::{Small, Store, places};

/// Directory of the plots that verdicts rest on.
const PLOTS: &str = "docs/lab/plots";

const HELP: &str = "usage: lab-tables [ID...|all]
Runs the named experiments at their own scale (`all`: every one in virtual time; takes hours), and \
keeps their reports in results/reports. Then makes the tables of docs/LAB.md, docs/lab and \
docs/CLAIMS.md, and the claims' plots, from all reports there. Run it in the directory of the \
sources.";

fn main() -> Result<()> {
    let ids: Vec<String> = std::env::args().skip(1).collect();
    if ids.iter().any(|id| id.starts_with('-')) {
        println!("{HELP}");
        return Ok(());
    }
    let (documents, store) =
        places(Path::new(".")).context("lab-tables runs in the directory of the sources")?;
    let chosen: Vec<&Experiment> = if ids.iter().any(|id| id == "all") {
        Store::experiments().filter(|e| !e.has_real_time).collect()
    } else {
        ids.iter().map(|id| one(id)).collect::<Result<_>>()?
    };
    let runs = cell::Store::open(Path::new("target/lab-runs"))?;
    for experiment in chosen {
        let start = Instant::now();
        store.write(&Store::run(
            experiment,
            experiment.scale,
            false,
            Some(&runs),
        )?)?;
        let mut small = Small::read(&store)?;
        if experiment.is_small {
            small.note(experiment)?;
        }
        small.write(&store)?;
        println!("{}: {:.1} s", experiment.id, start.elapsed().as_secs_f64());
    }
    for document in documents {
        let at = || document.display().to_string();
        let text = fs::read_to_string(&document).with_context(at)?;
        write_if_changed(&document, &text, &store.render(&text).with_context(at)?)?;
    }
    let document = Path::new("docs/CLAIMS.md");
    let text = fs::read_to_string(document).context("docs/CLAIMS.md")?;
    let made = Claims::read(Path::new("docs"))?.render(&text, &store)?;
    write_if_changed(document, &text, &made)?;
    write_plots(&store)
}

/// Writes the plots that verdicts rest on, and no others.
fn write_plots(store: &Store) -> Result<()> {
    let dir = Path::new(PLOTS);
    fs::create_dir_all(dir)?;
    let claims = Claims::read(Path::new("docs"))?;
    let mut names = Vec::new();
    for plot in claims.judge(store)?.iter().flat_map(|judged| &judged.plots) {
        let path = dir.join(format!("{}.svg", plot.name));
        let old = fs::read_to_string(&path).unwrap_or_default();
        write_if_changed(&path, &old, &plot.svg()?)?;
        names.push(path);
    }
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if !names.contains(&path) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

fn write_if_changed(document: &Path, text: &str, made: &str) -> Result<()> {
    if made != text {
        fs::write(document, made)?;
        println!("{}: changed", document.display());
    }
    Ok(())
}

fn one(id: &str) -> Result<&'static Experiment> {
    let known = || {
        Store::experiments()
            .map(|e| e.id)
            .collect::<Vec<_>>()
            .join(", ")
    };
    match find(id) {
        Some(experiment) => Ok(experiment),
        None => bail!("there is no experiment {id}; there are {}", known()),
    }
}
