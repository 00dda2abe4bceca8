//! `stetfs schemes`: shows the registry as a table. There is no second list.

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;
use stetfs_scheme::{About, Beside, InMemory};
use stetfs_schemes::SCHEMES;

use crate::args::Schemes;
use crate::failure::Result;
use crate::output;
use crate::size::Size;

pub(crate) fn run(args: &Schemes) -> Result<()> {
    let all: Vec<&About> = SCHEMES.iter().map(|s| s.about).collect();
    if args.json {
        #[derive(Serialize)]
        struct All<'a> {
            schemes: Vec<&'a About>,
        }
        return output::json(&All { schemes: all });
    }
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header([
        "scheme",
        "what it is",
        "data=",
        "needs",
        "after a crash",
        "cost of a commit",
    ]);
    for about in &all {
        table.add_row([
            about.name,
            about.title,
            &modes(about),
            &needs(about),
            promise(about),
            about.cost,
        ]);
    }
    output::line(table.trim_fmt())?;
    let options = all
        .iter()
        .flat_map(|about| about.options.iter().map(move |option| (about, option)));
    for (about, option) in options {
        output::line(format!(
            "\n-o {}={} (scheme {}, default {})\n    {}",
            option.name, option.syntax, about.name, option.default, option.what
        ))?;
    }
    Ok(())
}

fn modes(about: &About) -> String {
    let names: Vec<&str> = about.modes.iter().map(|m| m.name()).collect();
    if names.is_empty() {
        "-".to_owned()
    } else {
        names.join(" ")
    }
}

fn needs(about: &About) -> String {
    let memory = match about.nvm {
        Beside::Never => None,
        Beside::Too(size) => Some(format!("nothing, or memory beside it ({})", Size(size))),
        Beside::Only(size) => Some(format!("memory beside it ({})", Size(size))),
    };
    let needs = [
        about
            .needs_journal_area
            .then(|| "a journal in the volume".to_owned()),
        (about.in_memory == InMemory::Only).then(|| "the volume in memory".to_owned()),
        about
            .needs_remap
            .then(|| "a medium that remaps (a NAND part, or a file on XFS or Btrfs)".to_owned()),
        memory,
    ];
    let needs: Vec<String> = needs.into_iter().flatten().collect();
    if needs.is_empty() {
        "-".to_owned()
    } else {
        needs.join("; ")
    }
}

fn promise(about: &About) -> &'static str {
    if about.atomic {
        "each transaction entirely or not at all"
    } else {
        "nothing"
    }
}
