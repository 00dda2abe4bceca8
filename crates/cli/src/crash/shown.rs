//! The result of an exploration, for people.

use comfy_table::{CellAlignment, Table, presets};
use stetfs_crash::exploration::{Exploration, grouped};
use stetfs_crash::explored::some_of;
use stetfs_crash::oracle::NOT_COMPARED;
use stetfs_crash::report::{Counts, Violation};
use stetfs_crash::sharing::listed;
use stetfs_format::width::usize_as_u64;
use stetfs_powercut::finding::indented;

use crate::size::rounded_down;

/// Returns the numbers of the explorations, and below them what was not compared and not reached.
pub(super) fn table(explorations: &[Exploration]) -> String {
    let mut text = format!(
        "{}\n\nNot compared: {}.",
        numbers(explorations).trim_fmt(),
        NOT_COMPARED.join("; ")
    );
    for exploration in explorations.iter().filter(|e| e.lacks_groups()) {
        let target = &exploration.asked.target;
        text += &format!(
            "\n\n{target}: groups wrote only to files that they made; other files need \
                data=journal or atomic=all"
        );
    }
    for exploration in explorations {
        let names: Vec<_> = never_ran(exploration).collect();
        if !names.is_empty() {
            let target = &exploration.asked.target;
            let names = some_of(&names);
            text += &format!("\n\n{target}: these workloads never ran: {names}");
        }
    }
    for exploration in explorations {
        let unreached = exploration.unreached();
        if !unreached.is_empty() {
            let found = unreached.iter().map(|row| format!("\n  {}", row.found));
            let target = &exploration.asked.target;
            text += &format!("\n\n{target}: no recovery met these cases:");
            text.extend(found);
        }
    }
    text
}

/// Returns the numbers, one column for each exploration: what was explored, what was found, and
/// what was not explored.
fn numbers(explorations: &[Exploration]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let names = explorations.iter().map(|e| e.asked.target.clone());
    table.set_header(std::iter::once(String::new()).chain(names));
    let mut row = |name: &str, number: &dyn Fn(&Exploration) -> String| {
        table.add_row(std::iter::once(name.to_owned()).chain(explorations.iter().map(number)));
    };
    if explorations.iter().any(|e| e.shards.of > 1) {
        row("shards", &|e| e.shards.to_string());
    }
    for (name, number) in LOOKED_AT {
        row(name, &|e| grouped(number(&e.report.counts)));
    }
    row("seconds", &|e| format!("{:.1}", e.report.seconds));
    row("states a second", &|e| {
        grouped(rounded_down(e.states_a_second))
    });
    row("violations", &|e| grouped(e.report.counts.violations));
    row("", &|_| String::new());
    row("NOT EXPLORED", &|_| String::new());
    if explorations.iter().any(|e| e.shards.of > 1) {
        row("shards that are missing", &|e| {
            listed(e.shards.missing().iter())
        });
        row("  workloads in them", &|e| grouped(e.elsewhere()));
    }
    row("sequences that were not sampled", &|e| {
        grouped(e.sequences_not_sampled)
    });
    row("overlapping orders: seeds tried, of 2^64", &|e| {
        grouped(e.orders.overlap_seeds)
    });
    row("workloads that ran in some kinds of orders only", &|e| {
        grouped(e.orders.in_some_only)
    });
    row("workloads that never ran (below)", &|e| {
        grouped(usize_as_u64(never_ran(e).count()))
    });
    for (name, number) in NOT_LOOKED_AT {
        row(name, &|e| grouped(number(&e.report.counts)));
    }
    row("rows of the scheme's recovery table (below)", &|e| {
        grouped(usize_as_u64(e.unreached().len()))
    });
    for column in 1..=explorations.len() {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Returns the titles of workloads for which the budget left no time at all.
fn never_ran(exploration: &Exploration) -> impl Iterator<Item = &str> {
    let never_ran = exploration.report.never_ran.iter().flatten();
    never_ran.map(String::as_str)
}

type Line = (&'static str, fn(&Counts) -> u64);

const LOOKED_AT: [Line; 19] = [
    ("workloads", |c| c.workloads),
    ("  in further orders", |c| c.orders),
    ("moments", |c| c.moments),
    ("states judged", |c| c.states),
    ("  distinct", |c| c.states_distinct),
    ("moments of recoveries", |c| c.nested_moments),
    ("states after a second cut", |c| c.nested),
    ("  distinct", |c| c.nested_distinct),
    ("states sampled to go on from (chains)", |c| {
        c.chains_sampled
    }),
    ("chains run", |c| c.chains),
    ("  moments in them", |c| c.chained_moments),
    ("  states after a cut in them", |c| c.chained),
    ("recoveries", |c| c.recoveries),
    ("  cut again", |c| c.recoveries_cut),
    ("  to audit the folding", |c| c.audits),
    ("  checked by e2fsck", |c| c.e2fsck),
    ("    agreeing with ours", |c| c.e2fsck_agreed),
    ("  with the journal replayed by e2fsck", |c| c.replayed),
    ("    with the same tree", |c| c.replayed_alike),
];

const NOT_LOOKED_AT: [Line; 9] = [
    ("workloads that have turns left", |c| c.workloads_unfinished),
    ("moments", |c| c.moments_left_out),
    ("states at the explored moments", |c| c.states_left_out),
    ("recoveries that were not cut again", |c| {
        c.recoveries.saturating_sub(c.recoveries_cut)
    }),
    ("moments of those that were", |c| c.nested_moments_left_out),
    ("states at the moments of recoveries", |c| c.nested_left_out),
    ("states from which no chain went on", |c| {
        c.states.saturating_sub(c.chains)
    }),
    ("moments of chains", |c| c.chained_moments_left_out),
    ("states at the moments of chains", |c| c.chained_left_out),
];

/// Formats a violation with the command that replays it.
pub(super) fn violation(n: usize, violation: &Violation) -> String {
    let Violation {
        fault,
        why,
        case,
        left,
        workload,
        minimized,
    } = violation;
    let mut text = format!(
        "\nviolation {n}, {fault}, in {workload}:\n{}\n",
        indented(why)
    );
    if !left.is_empty() {
        text += &format!("  at the cut, {left}\n");
    }
    if let Some(minimized) = minimized {
        text += &format!("  the smallest workload found:\n{}\n", indented(minimized));
    }
    text + &format!("  stetfs crash --replay '{case}'")
}

/// Formats a violation when it is found, while the search goes on.
pub(super) fn found(violation: &Violation) -> String {
    let Violation {
        fault,
        why,
        case,
        workload,
        ..
    } = violation;
    let first = why.lines().next().unwrap_or_default();
    format!("found {fault} in {workload}: {first}\n  stetfs crash --replay '{case}'")
}
