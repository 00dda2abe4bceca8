//! Runs experiments, keeps their reports in `docs/reports`, and makes the tables of `docs/LAB.md`
//! and `docs/CLAIMS.md` from all that are kept there. See `--help`.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use stetfs_lab::cell;
use stetfs_lab::claims::Claims;
use stetfs_lab::experiment::stored::{Small, Store, places};
use stetfs_lab::experiment::{Experiment, find};

const HELP: &str = "usage: lab-tables [ID...|all]
Runs these experiments in virtual time at their own scale (`all` takes long) and keeps their \
reports in docs/reports; then, and without
an experiment at once, makes the tables of docs/LAB.md and docs/CLAIMS.md. In the directory of the \
sources.";

fn main() -> Result<()> {
    let ids: Vec<String> = std::env::args().skip(1).collect();
    if ids.iter().any(|id| id.starts_with('-')) {
        println!("{HELP}");
        return Ok(());
    }
    let (documents, store) =
        places(Path::new(".")).context("lab-tables runs in the directory of the sources")?;
    let chosen: Vec<&Experiment> = match ids.iter().any(|id| id == "all") {
        true => Store::experiments().collect(),
        false => ids.iter().map(|id| one(id)).collect::<Result<_>>()?,
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
    write_if_changed(document, &text, &made)
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
    match find(id).filter(|found| Store::experiments().any(|e| e.id == found.id)) {
        Some(experiment) => Ok(experiment),
        None => bail!(
            "there is no experiment {id} in virtual time; there are {}",
            known()
        ),
    }
}
