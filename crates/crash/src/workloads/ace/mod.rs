//! The workloads within the bounds of ACE, CrashMonkey's generator: all sequences of one or two
//! operations, and three restricted sets of sequences of three.
//!
//! The bounds are facts from two sources: Mohan, Martinez, Ponnapalli, Raju, Chidambaram, "Finding
//! Crash-Consistency Bugs with Bounded Black-Box Crash Testing" (OSDI 2018), whose figures
//! [`Bounds::published`] names, and the generators of the paper's repository
//! (github.com/utsaslab/crashmonkey, commit 27ca57f, `ace/specific_generator_scripts`). The list is
//! our own. It is made in four steps, as the paper describes them:
//!
//! 1. Operations and their parameters: all tuples of the [`Action`]s of the bounds.
//! 2. Persistence points: after each action nothing, sync, or an fsync of an object of the tuple.
//!    In sequences of one and two also of its directory and of its sibling. After the last action
//!    nothing is no choice.
//! 3. Preparations ([`prepared`]): what an action needs is made before it, on an empty volume, and
//!    the power is cut in that too.
//! 4. What has the same text as an earlier workload is left out.
//!
//! It differs from ACE in this:
//!
//! - After an fdatasync, and after a mapped write with its msync, there is one choice. ACE counts a
//!   workload there for each persistence point, and then leaves the point out.
//! - `remove` and `unlink` of a file are one system call.
//! - The operations have neither O_DIRECT nor mappings. A direct write is a write: it promises
//!   nothing more. A mapped write with msync is a write with fdatasync, as msync is in the kernel.
//! - Files are open for one operation, not from their first use to their last.
//! - A directory that is replaced is emptied. What cannot be done is left out: a directory that
//!   moves into itself, an fsync of a device file, space operations without extents.

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
    /// Of three: data of one file.
    ThreeData,
    /// Of three: names, with writes and truncates.
    ThreeMetadata,
    /// Of three: links and renames with a directory in a directory.
    ThreeNested,
}

/// What was left out of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Workloads that cannot be done.
    pub impossible: u64,
    /// Workloads with the text of another.
    pub again: u64,
}

impl Bounds {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::One,
        Self::Two,
        Self::ThreeData,
        Self::ThreeMetadata,
        Self::ThreeNested,
    ];

    /// The name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::One => "ace1",
            Self::Two => "ace2",
            Self::ThreeData => "ace3-data",
            Self::ThreeMetadata => "ace3-metadata",
            Self::ThreeNested => "ace3-nested",
        }
    }

    /// What the paper calls it, and how many workloads it says there are.
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

    /// Whether siblings and directories of what is used are persisted too.
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

    /// Whether the tuple belongs to the list.
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

    /// How many workloads the list has as ACE counts: after an fdatasync and a mapped write one for
    /// each persistence point, but for sequences of one; and those that are left out.
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

    /// Hands out the workloads of the list one after the other.
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

    /// What may follow each action of the tuple.
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

    /// What may be persisted.
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

/// All tuples of indices below these lengths; the last index counts fastest.
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

/// The operations of a tuple with what follows each action.
fn operations(tuple: &[Action], points: impl Iterator<Item = Point>) -> Option<Vec<Op>> {
    let mut prepared = Prepared::default();
    for (action, point) in tuple.iter().zip(points) {
        prepared.act(*action);
        prepared.persist(point)?;
    }
    Some(prepared.ops)
}

/// Whether each action but the first has a path of an earlier one. Directories are connected with
/// whatever is in them, so an action of directories is, and one that directly follows them.
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

    /// Whether it can be done on a volume with these rules.
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

/// Files that are acted upon.
const FIRST: &[&str] = &["foo", "A/foo"];
/// Those that names are moved to and linked at.
const SECOND: &[&str] = &["bar", "A/bar"];
/// The same where nothing is at the top.
const FIRST_BELOW: &[&str] = &["B/foo", "A/foo"];
const SECOND_BELOW: &[&str] = &["B/bar", "A/bar"];
/// The same with a directory in a directory.
const FIRST_NESTED: &[&str] = &["B/foo", "A/foo", "A/C/foo"];

const SPACE: [Reserve; 5] = [
    Reserve::Zero,
    Reserve::ZeroKeepSize,
    Reserve::Punch,
    Reserve::KeepSize,
    Reserve::Plain,
];

/// A page and a page, aligned, and bytes in the middle of one.
const PLACES: &[Place] = &[Place::Append(4096), Place::At(0, 4096), MIDDLE];
const MIDDLE: Place = Place::At(1000, 3000);
const WHOLE_PAGES: &[Place] = &[Place::Append(4096), Place::At(0, 4096)];

/// Each verb with each path.
fn on(paths: &[&'static str], verbs: &[Verb]) -> Vec<Action> {
    let all = paths
        .iter()
        .flat_map(|path| verbs.iter().map(|verb| Action { verb: *verb, path }));
    all.collect()
}

/// From each path to each other.
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

/// Each of these verbs at each of these places.
fn at(verb: fn(Place) -> Verb, places: &[Place]) -> Vec<Verb> {
    places.iter().map(|place| verb(*place)).collect()
}

fn space(places: &[Place]) -> Vec<Verb> {
    let all = SPACE
        .iter()
        .flat_map(|how| places.iter().map(|at| Verb::Fallocate(*how, *at)));
    all.collect()
}

/// What sequences of one and of two have in common.
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
