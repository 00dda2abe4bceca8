//! The traces in results/traces are those of the code: every change that a scheme makes to its
//! media, in order, with flushes and fences. `STETFS_LAB_WRITE=1` (`make traces`) writes them anew.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use stetfs_crash::trace::{dir, file, maker, trace, traced};
use stetfs_scheme::Registration;
use stetfs_schemes::{each_scheme, find, for_use};
use stetfs_testkit::document;
use stetfs_testkit::host::needs;
use stetfs_testkit::skip_unless;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Short enough to compare two by eye. Tinca's is the longest, with three fences for each block.
const MOST_LINES: usize = 240;

fn compare(scheme: &Registration) {
    skip_unless!(needs(false, false, &["mke2fs"]));
    let writes = std::env::var_os("STETFS_LAB_WRITE").is_some();
    for trial in traced(scheme) {
        let path = file(Path::new(ROOT), trial);
        let made = trace(scheme, trial).unwrap_or_else(|error| panic!("{trial}: {error:#}"));
        let lines = made.lines().count();
        assert!(lines <= MOST_LINES, "{trial}: {lines} lines");
        if writes {
            fs::create_dir_all(dir(Path::new(ROOT))).expect("results/traces");
            fs::write(&path, &made).expect("a trace");
            continue;
        }
        let kept = fs::read_to_string(&path).unwrap_or_default();
        let maker = maker().expect("mke2fs");
        if !kept.is_empty() && !kept.contains(&maker) {
            eprintln!("SKIPPED: {}: not made with {maker}", path.display());
            return;
        }
        let wrong = document::difference(&path.display().to_string(), &kept, &made);
        assert!(
            wrong.is_none(),
            "{}; make traces",
            wrong.unwrap_or_default()
        );
    }
}

macro_rules! tests {
    ($($scheme:ident)*) => {
        $(
            #[test]
            fn $scheme() {
                compare(find(stringify!($scheme)).expect("a scheme"));
            }
        )*
    };
}

each_scheme!(tests);

#[test]
fn each_trace_is_of_a_trial() {
    let trials = for_use().iter().flat_map(traced);
    let names: BTreeSet<_> = trials.map(|trial| file(Path::new(ROOT), trial)).collect();
    for kept in fs::read_dir(dir(Path::new(ROOT))).expect("results/traces") {
        let path = kept.expect("a file").path();
        assert!(names.contains(&path), "{} is of no trial", path.display());
    }
}
