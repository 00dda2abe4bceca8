//! The operations of the enumerated sequences, on two directories and a few files, and the syncs
//! that may follow each.

use crate::workload::Workload;
use stetfs_testkit::world::op::Op;

/// What the sequences start from, as text.
const SETUP: &str = "\
mkdir A; mkdir B; mkdir A/d; mkdir B/e
create A/x; write A/x 0 5000 11; setxattr A/x user.one 20 13
create B/y; write B/y 0 3000 12
";

/// Returns the standard setup: files `A/x` (5,000 bytes and an attribute) and `B/y` (3,000 bytes),
/// and empty directories `A/d` and `B/e`.
pub fn standard_setup() -> Vec<Op> {
    ops(SETUP)
}

/// Returns the same setup with empty caches and a clock that stands, so that writes leave the times
/// as they are.
pub fn cold_setup() -> Vec<Op> {
    [standard_setup(), ops("remount; clock still")].concat()
}

/// Operations that are written down here.
pub(super) fn ops(text: &str) -> Vec<Op> {
    Workload::parse("vocabulary", text)
        .unwrap_or_else(|error| panic!("{text}: {error:#}"))
        .ops
}

/// The object of an fsync after an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Object {
    /// A file, by its path.
    File(&'static str),
    /// A directory.
    Dir(&'static str),
    /// The file in slot 0, which the action opened: it has lost this name.
    Open,
    /// None: symbolic links cannot be opened.
    Nothing,
}

use Object::{Dir, File, Nothing, Open};

/// An operation of the vocabulary.
#[derive(Debug)]
pub struct Action {
    does: &'static str,
    object: Object,
    /// Directories whose fsync makes it durable.
    parents: &'static [&'static str],
    /// True if it belongs to the core, of which all pairs are run.
    pub core: bool,
}

const fn action(
    core: bool,
    does: &'static str,
    object: Object,
    parents: &'static [&'static str],
) -> Action {
    Action {
        does,
        object,
        parents,
        core,
    }
}

/// In the core.
const C: bool = true;
/// Beside it.
const O: bool = false;

const A: &[&str] = &["A"];
const B: &[&str] = &["B"];
const BOTH: &[&str] = &["B", "A"];
const X: Object = File("A/x");
const Y: Object = File("B/y");
const N: Object = File("A/n");

/// The vocabulary. An action that does not apply after another fails in the model, and the sequence
/// is left out: `A/n` and `B/n` do not exist at first.
pub const VOCABULARY: [Action; 69] = [
    // Names.
    action(C, "create A/n excl", N, A),
    action(O, "create B/n excl", File("B/n"), B),
    action(C, "create A/x excl", X, A),
    action(C, "mkdir A/n", Dir("A/n"), A),
    action(O, "mkdir B/n", Dir("B/n"), B),
    action(C, "symlink x A/n", Nothing, A),
    action(
        O,
        "symlink a/target/of/more/than/sixty/bytes/which/takes/a/block/of/its/own B/n",
        Nothing,
        B,
    ),
    action(O, "mkchar A/n 4000 1000000", Nothing, A),
    action(C, "link A/x A/n", N, A),
    action(C, "link A/x B/n", File("B/n"), B),
    action(O, "link B/y A/n", N, A),
    action(C, "unlink A/x", Nothing, A),
    action(O, "unlink B/y", Nothing, B),
    action(C, "unlink A/n", Nothing, A),
    action(C, "open @0 A/x; unlink A/x", Open, A),
    action(C, "rmdir A/d", Nothing, A),
    action(O, "rmdir B/e", Nothing, B),
    action(O, "rmdir A/n", Nothing, A),
    action(C, "rename A/x A/n", N, A),
    action(C, "rename A/x B/n", File("B/n"), BOTH),
    action(C, "rename A/n A/x", X, A),
    action(C, "rename A/x B/y", Y, BOTH),
    action(O, "rename B/y A/x", X, BOTH),
    action(O, "open @0 B/y; rename A/x B/y", Open, BOTH),
    action(C, "rename A/x B/y exchange", Y, BOTH),
    action(C, "rename A/d B/n", Dir("B/n"), BOTH),
    action(O, "rename A/d B/e", Dir("B/e"), BOTH),
    action(O, "rename A/d B/y exchange", Dir("B/y"), BOTH),
    // Contents. A block has 1, 2 or 4 KiB, A/x 5,000 bytes.
    action(C, "truncate A/x 0", X, A),
    action(C, "truncate A/x 2500", X, A),
    action(C, "truncate A/x 9000", X, A),
    action(O, "truncate B/y 1024", Y, B),
    action(C, "write A/x 0 5000 21", X, A),
    action(O, "write A/x 1024 2048 22", X, A),
    action(C, "write A/x 700 100 23", X, A),
    action(O, "write A/x 4800 3000 24", X, A),
    action(C, "write A/x 20000 1500 25", X, A),
    action(C, "write A/n 0 3000 26", N, A),
    action(O, "write B/y 2000 2000 27", Y, B),
    action(O, "write A/x 700 100 35 dsync", X, A),
    action(O, "write A/x 4800 3000 36 sync", X, A),
    action(C, "append A/x 3000 28", X, A),
    action(O, "append A/x 30000 29", X, A),
    action(C, "append B/y 700 30", Y, B),
    // Space.
    action(C, "fallocate A/x 5000 6000", X, A),
    action(O, "fallocate A/x 8192 6000 keep-size", X, A),
    action(C, "punch A/x 1024 2048", X, A),
    action(O, "punch A/x 500 3000", X, A),
    action(C, "zero A/x 1000 2500", X, A),
    action(O, "zero A/x 4000 4000", X, A),
    action(O, "zero A/x 4096 8192 keep-size", X, A),
    // Attributes.
    action(C, "setxattr A/x user.two 30 31", X, A),
    action(C, "setxattr A/x user.one 200 32", X, A),
    action(C, "removexattr A/x user.one", X, A),
    action(O, "setxattr A user.one 20 33", Dir("A"), &["."]),
    action(O, "setxattr B/y user.one 40 34", Y, B),
    action(O, "chmod A/x 600", X, A),
    action(O, "chown A/x 7 8", X, A),
    action(O, "utimes A/x 1.5 2.5", X, A),
    // What is not written by write(2), sizes that grow within a block, marks, a block of attributes
    // that two files share.
    action(C, "store A/x 700 100 37", X, A),
    action(O, "store A/x 900 4000 38", X, A),
    action(
        O,
        "open @0 A/x; open @1 B/y; copy @1 100 @0 1500 2000; close @1; close @0",
        X,
        A,
    ),
    action(O, "append A/x 60 39", X, A),
    action(O, "truncate A/x 5060", X, A),
    action(C, "chattr A/x +j", X, A),
    action(O, "chattr A/x -j", X, A),
    action(O, "chattr A +j", Dir("A"), &["."]),
    action(O, "setxattr A/x user.large 700 40", X, A),
    action(O, "setxattr B/y user.large 700 40", Y, B),
];

/// What is staged in a group of writes: all of a file, a part of a block, what lies beyond a hole,
/// of two files the ends, a file that an action has made.
pub(super) const STAGED: [&str; 5] = [
    "group-write A/x 0 5000 41",
    "group-write A/x 700 100 42",
    "group-write A/x 20000 1500 43",
    "group-write A/x 4800 3000 44; group-write B/y 2000 2000 45",
    "group-write A/n 0 3000 46",
];

/// What is staged of names, sizes and attributes, an operation each.
pub(super) const NAMED: [&str; 14] = [
    "group-do create A/n excl",
    "group-do mkdir A/n",
    "group-do symlink x A/n",
    "group-do mkfifo B/n",
    "group-do link A/x B/n",
    "group-do unlink A/x",
    "group-do rmdir A/d",
    "group-do rename A/x A/n noreplace",
    "group-do rename A/x B/y",
    "group-do rename A/x B/y exchange",
    "group-do truncate A/x 2500",
    "group-do truncate A/x 9000",
    "group-do chmod A/x 600",
    "group-do chown A 7 8",
];

/// Several of them as programs make, save and replace files and move trees, and beside a write.
pub(super) const TOGETHER: [&str; 5] = [
    "group-do create A/n excl; group-do open @0 A/n; group-write @0 0 3000 47; close @0",
    "group-do create A/n excl; group-do open @0 A/n; group-write @0 0 6000 48; close @0;\
     group-do rename A/n A/x; group-do readdir A",
    "group-do unlink A/x; group-do create A/x excl; group-do chmod A/x 600;\
     group-do truncate A/x 700",
    "group-do mkdir A/n; group-do rename A/x A/n/x; group-do rename A/n B/e; group-do readdir B/e",
    "group-write A/x 700 100 42; group-do rename A/x B/n; group-do rmdir A/d",
];

/// How a group ends. The last is open when the volume is unmounted.
pub(super) const ENDS: [&str; 4] = ["group-commit", "group-commit lazy", "group-abort", ""];

/// What two groups stage that are open beside each other and meet: who is committed second gets
/// a conflict. Writes to one file meet wherever they go, and so do its cuts.
pub(super) const MEETINGS: [(&str, &str); 18] = [
    // One file: one block, two, all of it, behind its end, a cut.
    ("group-write A/x 600 200 51", "group-write A/x 700 100 52"),
    ("group-write A/x 700 100 51", "group-write A/x 3000 900 52"),
    ("group-write A/x 0 5000 51", "group-write A/x 4800 3000 52"),
    (
        "group-write A/x 20000 1500 51",
        "group-write A/x 12000 900 52",
    ),
    ("group-write A/x 700 4000 51", "group-do truncate A/x 2500"),
    ("group-do truncate A/x 700", "group-do truncate A/x 9000"),
    // Two files of both, the other way round.
    (
        "group-write A/x 700 100 51; group-write B/y 700 100 52",
        "group-write B/y 600 200 53; group-write A/x 600 200 54",
    ),
    // One name; the names of one file.
    ("group-do create A/n excl", "group-do create A/n excl"),
    ("group-do mkdir A/n", "group-do rename B/y A/n"),
    (SAVED, SAVED),
    ("group-do unlink A/x", "group-do unlink A/x"),
    ("group-do link A/x A/n", "group-do link A/x B/n"),
    ("group-do link A/x B/n", "group-do unlink A/x"),
    // A directory that one removes, and the other makes or moves something in.
    ("group-do rmdir A/d", "group-do create A/d/n excl"),
    ("group-do rmdir B/e", "group-do rename A/x B/e/x"),
    // Renames of one file, and against each other; two directories into each other.
    ("group-do rename A/x A/n", "group-do rename A/x B/n"),
    ("group-do rename A/x B/y", "group-do rename B/y A/x"),
    ("group-do rename A/d B/e/d", "group-do rename B/e A/d/e"),
];

/// The same of two that pass each other by: both happen.
pub(super) const PASSINGS: [(&str, &str); 9] = [
    ("group-write A/x 0 5000 51", "group-write B/y 2000 2000 52"),
    // Writes, and the name or an attribute of their file.
    ("group-write A/x 700 100 51", "group-do unlink A/x"),
    ("group-write A/x 0 5000 51", "group-do rename A/x B/n"),
    ("group-write B/y 700 3000 51", "group-do rename A/x B/y"),
    ("group-write A/x 700 100 51", SAVED),
    ("group-write A/x 0 5000 51", "group-do chmod A/x 600"),
    ("group-do chmod A/x 600", "group-do chown A/x 7 8"),
    // Two names in one directory.
    ("group-do create A/n excl", "group-do mkdir A/m"),
    ("group-do unlink A/x", "group-do rename B/y A/n"),
];

/// A file that is written anew, and takes the old one's name.
const SAVED: &str = "group-do create B/n excl; group-do open @0 B/n; group-write @0 0 3000 55; \
    close @0; group-do rename B/n A/x";

/// How two groups end when both have staged what they do, and the second is meant.
pub(super) const PARTINGS: [&str; 6] = [
    "group-switch; group-commit; group-switch; group-commit",
    "group-commit; group-switch; group-commit",
    "group-switch; group-commit lazy; group-switch; group-commit",
    "group-commit lazy; group-switch; group-commit lazy",
    "group-switch; group-abort; group-switch; group-commit",
    // The first is open when the volume is unmounted.
    "group-commit",
];

/// What happens beside a group that is no action.
pub(super) const BESIDE: [&str; 2] = ["sync", "remount"];

/// What may follow an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persist {
    /// Nothing.
    Nothing,
    /// fsync of the object.
    Fsync,
    /// fdatasync of the object, a file.
    Fdatasync,
    /// sync.
    Sync,
    /// fsync of a directory that holds its name: of the new one, or the old one.
    Parent(usize),
}

impl Persist {
    /// All syncs.
    pub const ALL: [Self; 6] = [
        Self::Nothing,
        Self::Fsync,
        Self::Fdatasync,
        Self::Sync,
        Self::Parent(0),
        Self::Parent(1),
    ];
}

impl Action {
    /// Whether it is of the core, and the model knows what becomes of a group beside it: whether a
    /// file can have one changes with its mark.
    pub(super) fn is_beside_groups(&self) -> bool {
        let verb = self.does.split(' ').next();
        self.core && !matches!(verb, Some("chattr" | "store"))
    }

    /// The operations of the action with what follows it; nothing when that does not apply.
    pub fn ops(&self, persist: Persist) -> Option<Vec<Op>> {
        let after = match (persist, self.object) {
            (Persist::Nothing, _) => String::new(),
            (Persist::Sync, _) => "sync".to_owned(),
            (Persist::Parent(n), _) => format!("fsyncdir {}", self.parents.get(n)?),
            (Persist::Fsync, File(path)) => format!("fsync {path}"),
            (Persist::Fsync, Dir(path)) => format!("fsyncdir {path}"),
            (Persist::Fsync, Open) => "fsync @0".to_owned(),
            (Persist::Fdatasync, File(path)) => format!("fdatasync {path}"),
            (Persist::Fdatasync, Open) => "fdatasync @0".to_owned(),
            _ => return None,
        };
        let close = if self.object == Open { "close @0" } else { "" };
        Some(ops(&format!("{}; {after}; {close}", self.does)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stetfs_testkit::image::EXT4_1K;
    use stetfs_testkit::world::World;
    use stetfs_testkit::world::model::Model;

    #[test]
    fn every_action_applies_alone_or_after_another() {
        let mut start = Model::new(EXT4_1K.rules());
        for op in standard_setup() {
            start
                .apply(&op)
                .unwrap_or_else(|error| panic!("{op}: {error}"));
        }
        let applies = |model: &mut Model, action: &Action| {
            let ops = action.ops(Persist::Nothing).expect("operations");
            ops.iter().all(|op| model.apply(op).is_ok())
        };
        for action in &VOCABULARY {
            let after_another = VOCABULARY.iter().any(|first| {
                let mut model = start.clone();
                applies(&mut model, first) && applies(&mut model, action)
            });
            assert!(
                applies(&mut start.clone(), action) || after_another,
                "{}",
                action.does
            );
        }
    }
}
