//! The workloads within the bounds of ACE, CrashMonkey's generator: all sequences of one or two
//! operations, and three restricted sets of sequences of three.
//!
//! The bounds are facts from two sources: Mohan, Martinez, Ponnapalli, Raju, Chidambaram, "Finding
//! Crash-Consistency Bugs with Bounded Black-Box Crash Testing" (OSDI 2018), whose figures
//! [`Bounds::published`] names, and the generators of the paper's repository
//! (github.com/utsaslab/crashmonkey, commit 27ca57f, `ace/specific_generator_scripts`). The list is
//! our own. It is made in four steps, as the paper describes them:
//! 1. Operations and their parameters: all tuples of the [`Action`]s of the bounds.
//! 2. Persistence points: each action is followed by nothing, by a sync, or by an fsync of an
//!    object of the tuple. In sequences of one and two, also by an fsync of an object's directory
//!    or sibling. The last action is always followed by one of the syncs.
//! 3. Preparations ([`prepared`]): operations on an empty volume that make what an action needs.
//!    The power is cut during these too.
//! 4. A workload with the same text as an earlier one is left out.
//!
//! The list differs from ACE's in this:
//!
//! - An fdatasync, and a mapped write with its msync, has one choice of what follows: nothing. ACE
//!   counts a workload for each persistence point there, and then leaves the point out.
//! - `remove` and `unlink` of a file are one system call.
//! - The operations have neither O_DIRECT nor mappings. A direct write is a plain write, since it
//!   promises nothing more. A mapped write with msync is a write with fdatasync, as msync is in the
//!   kernel.
//! - A file is open for one operation, not from its first use to its last.
//! - A directory that a rename replaces is emptied first. Impossible workloads are left out: a
//!   directory that moves into itself, an fsync of a device file, fallocate modes that need
//!   extents.

mod action;
mod prepared;

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use self::action::{Action, Place, Point, TOP, Verb, is_file};
use self::prepared::Prepared;
use crate::turns::Order;
use crate::workload::Workload;
use stetfs_testkit::world::World;
use stetfs_testkit::world::model::{Model, Rules};
use stetfs_testkit::world::op::{Op, Reserve};
use stetfs_testkit::world::tree::hash;

/// The bounds of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Bounds {
    /// All sequences of one operation.
    One,
    /// All sequences of two.
    Two,
    /// Sequences of three: data of one file.
    ThreeData,
    /// Sequences of three: names, with writes and truncates.
    ThreeMetadata,
    /// Sequences of three: links and renames, with a directory in a directory.
    ThreeNested,
}

/// The number of workloads that were left out of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Workloads that cannot run.
    pub impossible: u64,
    /// Workloads with the text of an earlier one.
    pub again: u64,
}

impl Bounds {
    /// All bounds.
    pub const ALL: [Self; 5] = [
        Self::One,
        Self::Two,
        Self::ThreeData,
        Self::ThreeMetadata,
        Self::ThreeNested,
    ];

    /// The name that the command line uses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::One => "ace1",
            Self::Two => "ace2",
            Self::ThreeData => "ace3-data",
            Self::ThreeMetadata => "ace3-metadata",
            Self::ThreeNested => "ace3-nested",
        }
    }

    /// The paper's name for the list, and the number of workloads that the paper gives.
    pub const fn published(self) -> (&'static str, &'static str) {
        match self {
            Self::One => ("seq-1", "300"),
            Self::Two => ("seq-2", "254K"),
            Self::ThreeData => ("seq-3-data", "120K"),
            Self::ThreeMetadata => ("seq-3-metadata", "1.5M"),
            Self::ThreeNested => ("seq-3-nested", "1.5M"),
        }
    }

    fn length(self) -> usize {
        match self {
            Self::One => 1,
            Self::Two => 2,
            _ => 3,
        }
    }

    /// True if an fsync may also follow of the siblings and directories of the paths used.
    fn persists_related(self) -> bool {
        self.length() < 3
    }

    fn actions(self) -> Vec<Action> {
        match self {
            Self::One => one(),
            Self::Two => two(),
            Self::ThreeData => data(),
            Self::ThreeMetadata => metadata(),
            Self::ThreeNested => nested(),
        }
    }

    /// True if the tuple belongs to the list.
    fn has(self, tuple: &[Action]) -> bool {
        let writes_only = tuple.iter().all(|a| matches!(a.verb, Verb::Write(_)));
        match self {
            Self::One | Self::Two => true,
            Self::ThreeData => {
                let appends: Vec<_> = tuple.iter().map(|a| a.appends()).collect();
                appends[0] && appends.contains(&false) && !writes_only
            }
            Self::ThreeMetadata => !writes_only,
            Self::ThreeNested => is_connected(tuple),
        }
    }

    /// Returns the number of workloads as ACE counts them: including those that are left out, and,
    /// in sequences of two and three, one for each persistence point after an fdatasync and a
    /// mapped write.
    pub fn counted_as_published(self) -> u64 {
        let actions = self.actions();
        let tuples = product(&vec![actions.len(); self.length()]).filter_map(|indices| {
            let tuple: Vec<_> = indices.iter().map(|i| actions[*i]).collect();
            let objects = self.objects(&tuple).len() as u64;
            let count = match self {
                Self::One => self.choices(&tuple)[0].len() as u64,
                _ => (objects + 2).pow(self.length() as u32 - 1) * (objects + 1),
            };
            self.has(&tuple).then_some(count)
        });
        tuples.sum()
    }

    /// Calls `take` with each workload of the list in turn.
    pub fn each(self, rules: Rules, mut take: impl FnMut(Workload)) -> LeftOut {
        let actions = self.actions();
        let possible: Vec<bool> = actions.iter().map(|a| a.is_possible(rules)).collect();
        let (mut out, mut texts) = (LeftOut::default(), BTreeSet::new());
        for indices in product(&vec![actions.len(); self.length()]) {
            let tuple: Vec<_> = indices.iter().map(|i| actions[*i]).collect();
            if !self.has(&tuple) {
                continue;
            }
            let choices = self.choices(&tuple);
            let lengths: Vec<_> = choices.iter().map(Vec::len).collect();
            if !indices.iter().all(|i| possible[*i]) {
                out.impossible += lengths.iter().product::<usize>() as u64;
                continue;
            }
            for points in product(&lengths) {
                let points = points.iter().zip(&choices).map(|(i, of)| of[*i]);
                let Some(ops) = operations(&tuple, points) else {
                    out.impossible += 1;
                    continue;
                };
                let mut workload = Workload {
                    name: String::new(),
                    setup: Vec::new(),
                    ops,
                    order: Order::default(),
                };
                if texts.insert(hash(workload.to_string().as_bytes())) {
                    workload.name = format!("{self}:{}", texts.len());
                    take(workload);
                } else {
                    out.again += 1;
                }
            }
        }
        out
    }

    /// Returns, for each action of the tuple, the syncs that may follow it.
    fn choices(self, tuple: &[Action]) -> Vec<Vec<Point>> {
        let mut all = vec![Point::Sync];
        all.extend(self.objects(tuple).into_iter().map(Point::Fsync));
        let choices = tuple.iter().enumerate().map(|(i, action)| {
            if action.is_persistence_point() {
                vec![Point::Nothing]
            } else if i + 1 == tuple.len() {
                all.clone()
            } else {
                [&[Point::Nothing], &all[..]].concat()
            }
        });
        choices.collect()
    }

    /// Returns the paths that an fsync may name.
    fn objects(self, tuple: &[Action]) -> BTreeSet<&'static str> {
        let used = tuple.iter().flat_map(|action| action.paths());
        if self.persists_related() {
            used.flat_map(|p| [p, sibling(p), parent(p)]).collect()
        } else {
            used.collect()
        }
    }
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Bounds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|bounds| bounds.name() == text);
        found.ok_or_else(|| format!("there are no bounds \"{text}\""))
    }
}

impl From<Bounds> for String {
    fn from(bounds: Bounds) -> Self {
        bounds.name().to_owned()
    }
}

impl TryFrom<String> for Bounds {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// Returns all tuples of indices below these lengths. The last index counts fastest.
fn product(lengths: &[usize]) -> impl Iterator<Item = Vec<usize>> + use<> {
    let all: usize = lengths.iter().product();
    let lengths = lengths.to_vec();
    (0..all).map(move |mut number| {
        let mut indices = vec![0; lengths.len()];
        for (index, length) in indices.iter_mut().zip(&lengths).rev() {
            *index = number % length;
            number /= length;
        }
        indices
    })
}

/// Returns the operations of a tuple, each action followed by its sync. `None` if a sync is
/// impossible.
fn operations(tuple: &[Action], points: impl Iterator<Item = Point>) -> Option<Vec<Op>> {
    let mut prepared = Prepared::default();
    for (action, point) in tuple.iter().zip(points) {
        prepared.act(*action);
        prepared.persist(point)?;
    }
    Some(prepared.ops)
}

/// True if each action but the first shares a path with an earlier one. A directory counts as
/// connected with whatever is in it: an action on a directory is always connected, and so is an
/// action behind one that named two directories.
fn is_connected(tuple: &[Action]) -> bool {
    let mut used = BTreeSet::<&str>::new();
    for (i, action) in tuple.iter().enumerate() {
        let paths = action.paths();
        let among_dirs = used.len() == 2 && used.iter().all(|path| !is_file(path));
        let shares = paths.iter().any(|path| used.contains(path));
        if i > 0 && !shares && is_file(action.path) && !among_dirs {
            return false;
        }
        used.extend(paths);
    }
    true
}

impl Action {
    fn paths(self) -> Vec<&'static str> {
        match self.verb {
            Verb::Link(new) | Verb::Symlink(new) | Verb::Rename(new) => vec![self.path, new],
            _ => vec![self.path],
        }
    }

    fn appends(self) -> bool {
        match self.verb {
            Verb::Fallocate(_, place)
            | Verb::Write(place)
            | Verb::Direct(place)
            | Verb::Mapped(place) => matches!(place, Place::Append(_)),
            _ => false,
        }
    }

    fn is_persistence_point(self) -> bool {
        matches!(self.verb, Verb::Fdatasync | Verb::Mapped(_))
    }

    /// True if the action can run on a volume with these rules.
    fn is_possible(self, rules: Rules) -> bool {
        let ops = operations(&[self], [Point::Nothing].into_iter());
        let mut model = Model::new(rules);
        ops.is_some_and(|ops| ops.iter().all(|op| model.apply(op).is_ok()))
    }
}

fn sibling(path: &'static str) -> &'static str {
    match path {
        "foo" => "bar",
        "bar" => "foo",
        "A/foo" => "A/bar",
        "A/bar" => "A/foo",
        "A" => "B",
        "B" => "A",
        _ => path,
    }
}

fn parent(path: &'static str) -> &'static str {
    path.rsplit_once('/').map_or(TOP, |(parent, _)| parent)
}

/// Paths of the files that actions change.
const FIRST: &[&str] = &["foo", "A/foo"];
/// Paths that renames move to and links are made at.
const SECOND: &[&str] = &["bar", "A/bar"];
/// The same without paths at the top.
const FIRST_BELOW: &[&str] = &["B/foo", "A/foo"];
const SECOND_BELOW: &[&str] = &["B/bar", "A/bar"];
/// [`FIRST_BELOW`] with a directory in a directory.
const FIRST_NESTED: &[&str] = &["B/foo", "A/foo", "A/C/foo"];

const SPACE: [Reserve; 5] = [
    Reserve::Zero,
    Reserve::ZeroKeepSize,
    Reserve::Punch,
    Reserve::KeepSize,
    Reserve::Plain,
];

/// A page appended, a page overwritten, both aligned, and bytes that begin and end within pages.
const PLACES: &[Place] = &[Place::Append(4096), Place::At(0, 4096), MIDDLE];
const MIDDLE: Place = Place::At(1000, 3000);
const WHOLE_PAGES: &[Place] = &[Place::Append(4096), Place::At(0, 4096)];

/// Returns each verb with each path.
fn on(paths: &[&'static str], verbs: &[Verb]) -> Vec<Action> {
    let all = paths
        .iter()
        .flat_map(|path| verbs.iter().map(|verb| Action { verb: *verb, path }));
    all.collect()
}

/// Returns actions from each path of `from` to each other path of `to`.
fn between(
    verb: fn(&'static str) -> Verb,
    from: &[&'static str],
    to: &[&'static str],
) -> Vec<Action> {
    let all = from.iter().flat_map(|path| {
        let others = to.iter().filter(move |new| *new != path);
        others.map(move |new| Action {
            verb: verb(new),
            path,
        })
    });
    all.collect()
}

/// Returns this verb at each of these places.
fn at(verb: fn(Place) -> Verb, places: &[Place]) -> Vec<Verb> {
    places.iter().map(|place| verb(*place)).collect()
}

fn space(places: &[Place]) -> Vec<Verb> {
    let all = SPACE
        .iter()
        .flat_map(|how| places.iter().map(|at| Verb::Fallocate(*how, *at)));
    all.collect()
}

/// The actions that sequences of one and of two have in common.
fn common() -> Vec<Action> {
    let both = [FIRST, SECOND].concat();
    [
        on(FIRST, &[Verb::Create]),
        on(&["A"], &[Verb::Mkdir]),
        on(FIRST, &space(PLACES)),
        on(FIRST, &at(Verb::Write, PLACES)),
        on(FIRST, &at(Verb::Direct, WHOLE_PAGES)),
        on(&both, &[Verb::Unlink, Verb::Remove]),
        between(Verb::Rename, &["A"], &["B"]),
        on(FIRST, &[Verb::SetXattr, Verb::RemoveXattr, Verb::Fdatasync]),
    ]
    .concat()
}

fn one() -> Vec<Action> {
    [
        common(),
        on(FIRST, &[Verb::Mknod]),
        between(Verb::Link, FIRST, SECOND),
        between(Verb::Symlink, FIRST, SECOND),
        between(Verb::Rename, FIRST, SECOND),
    ]
    .concat()
}

fn two() -> Vec<Action> {
    let both = [FIRST, SECOND].concat();
    [
        common(),
        between(Verb::Link, FIRST, &both),
        between(Verb::Rename, &both, SECOND),
        on(FIRST, &[Verb::Truncate(0), Verb::Truncate(2500)]),
        on(FIRST, &at(Verb::Mapped, WHOLE_PAGES)),
    ]
    .concat()
}

fn data() -> Vec<Action> {
    const ANYWHERE: &[Place] = &[
        Place::Append(32768),
        Place::At(0, 5000),
        Place::Tail(5000),
        Place::Across(2000, 3000),
    ];
    const PAGES: &[Place] = &[Place::Append(32768), Place::At(0, 8192), Place::Tail(8192)];
    let verbs = [
        at(Verb::Write, ANYWHERE),
        at(Verb::Mapped, PAGES),
        space(ANYWHERE),
        at(Verb::Direct, PAGES),
    ];
    on(&["A/foo"], &verbs.concat())
}

fn metadata() -> Vec<Action> {
    let both = [FIRST_BELOW, SECOND_BELOW].concat();
    [
        on(
            FIRST_BELOW,
            &at(Verb::Write, &[Place::Append(4096), MIDDLE]),
        ),
        between(Verb::Link, FIRST_BELOW, &both),
        on(&both, &[Verb::Unlink]),
        between(Verb::Rename, &both, SECOND_BELOW),
        between(Verb::Rename, &["A"], &["B"]),
        on(FIRST_BELOW, &[Verb::Truncate(2500)]),
    ]
    .concat()
}

fn nested() -> Vec<Action> {
    let both = [FIRST_NESTED, SECOND_BELOW].concat();
    [
        between(Verb::Link, FIRST_NESTED, &both),
        between(Verb::Rename, &both, SECOND_BELOW),
        between(Verb::Rename, &["A", "B", "A/C"], &["B", "A/C"]),
    ]
    .concat()
}
