//! What a volume may hold after a power cut: the model's states and what the scheme promises of
//! data.
//!
//! Names, attributes and sizes must be those of one of the allowed states, all of it. The data of
//! files, by the promise: *atomic*: it is that state's too. *Ordered*: each sector holds what it
//! held in that state or in a later one of the allowed. *Writeback*: a page that changed in any of
//! the allowed states may hold anything. *Nothing*: judged as atomic, to see that the judge can
//! fail.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use anyhow::{Context, Result, bail, ensure};
use stetfs_scheme::DataPromise;

use stetfs_testkit::world::library::Library;
use stetfs_testkit::world::model::Model;
use stetfs_testkit::world::sparse::PAGE;
use stetfs_testkit::world::tree::{Facts, Tree, are_alike, differences};

const SECTOR: usize = 512;

/// What no state is compared in. The checkers see whether the structure of these is sound, not
/// whether it is what it should be.
pub const NOT_COMPARED: [&str; 6] = [
    "inode numbers, generations, flags, project ids, versions",
    "atime by reading (noatime)",
    "where a file's blocks are, and which are preallocated",
    "blocks of directories, links and attributes",
    "the superblock's times and counts",
    "files outside the workload's directory",
];

/// Pages by the path of their file and their number in it.
type PagesOf = BTreeMap<(Vec<u8>, u64), Vec<u8>>;

/// Everything that can be seen of a volume.
#[derive(Debug, PartialEq, Eq)]
pub struct Observation {
    /// Names, attributes, hashes of the contents.
    tree: Tree,
    /// The same without contents, and the pages of files that are not all zeros: where data is
    /// judged apart from its metadata.
    apart: Option<(Tree, PagesOf)>,
}

impl Observation {
    /// Looks at a mounted volume.
    ///
    /// # Errors
    /// Anything that cannot be read.
    pub fn of(library: &Library) -> Result<Self> {
        let tree = library.tree().context("reading the tree")?;
        let is_apart = matches!(
            library.fs().promise(),
            DataPromise::Ordered | DataPromise::Writeback
        );
        if !is_apart {
            return Ok(Self { tree, apart: None });
        }
        let mut pages = BTreeMap::new();
        for (path, facts) in &tree {
            for index in facts.pages.keys() {
                pages.insert((path.clone(), *index), library.page(path, *index)?);
            }
        }
        let bare = without_data(&tree);
        Ok(Self {
            tree,
            apart: Some((bare, pages)),
        })
    }

    /// How it differs from another one, a line each; nothing when they are equal.
    pub fn differences_from(&self, expected: &Self) -> Vec<String> {
        differences(&expected.tree, &self.tree)
    }
}

/// Knows the states that a run went through.
pub struct Oracle {
    states: Vec<Model>,
    /// What may be seen after so many operations: first the state itself, then, where the next
    /// operation takes several handles, those between them.
    views: Vec<Vec<View>>,
    promise: DataPromise,
}

/// What a state looks like.
struct View {
    tree: Tree,
    bare: Tree,
}

impl View {
    fn of(model: &Model) -> Self {
        let tree = model.tree();
        Self {
            bare: without_data(&tree),
            tree,
        }
    }
}

impl Oracle {
    /// An oracle for these states in the order in which they were reached, and this promise. Behind
    /// some of them those of `between` may be left too, before the next is reached.
    pub fn new(states: Vec<Model>, between: &[Vec<Model>], promise: DataPromise) -> Self {
        let views = states.iter().enumerate().map(|(n, state)| {
            let between = between.get(n).into_iter().flatten();
            let models = std::iter::once(state).chain(between);
            models.map(View::of).collect()
        });
        Self {
            views: views.collect(),
            states,
            promise,
        }
    }

    /// The states.
    pub fn states(&self) -> &[Model] {
        &self.states
    }

    /// Which of the allowed states it is: the newest, when several look the same.
    ///
    /// # Errors
    /// It is none of them: how it differs from the nearest.
    pub fn judge(&self, seen: &Observation, allowed: &RangeInclusive<usize>) -> Result<usize> {
        let views = || self.views_in(allowed);
        for (state, view) in views() {
            if self.is_right(seen, state, view, allowed)? {
                return Ok(state);
            }
        }
        let described = |(state, view)| Ok((state, self.wrong(seen, state, view, allowed)?));
        let described: Vec<(usize, Vec<String>)> = views().map(described).collect::<Result<_>>()?;
        let nearest = described.into_iter().min_by_key(|(_, wrong)| wrong.len());
        let (state, wrong) = nearest.context("no state is allowed")?;
        let (first, last) = (allowed.start(), allowed.end());
        bail!(
            "it is in none of the allowed states (after {first} to {last} operations); compared \
                with the state after {state}:\n{}",
            wrong.join("\n")
        )
    }

    /// What may be seen where these states are allowed, the newest first.
    fn views_in(&self, allowed: &RangeInclusive<usize>) -> impl Iterator<Item = (usize, &View)> {
        let last = *allowed.end();
        allowed.clone().rev().flat_map(move |state| {
            // What is between it and the next only when that may have begun.
            let most = match state < last {
                true => usize::MAX,
                false => 1,
            };
            let views = self.views[state].iter().take(most);
            views.map(move |view| (state, view))
        })
    }

    /// Whether it is just this state, its data too, and not one between it and the next.
    pub fn is_exactly(&self, seen: &Observation, state: usize) -> bool {
        are_alike(&self.views[state][0].tree, &seen.tree)
    }

    /// Whether [`wrong`](Self::wrong) would find nothing.
    fn is_right(
        &self,
        seen: &Observation,
        state: usize,
        view: &View,
        allowed: &RangeInclusive<usize>,
    ) -> Result<bool> {
        Ok(match &seen.apart {
            None => are_alike(&view.tree, &seen.tree),
            Some((bare, _)) => {
                are_alike(&view.bare, bare) && self.wrong(seen, state, view, allowed)?.is_empty()
            }
        })
    }

    /// How what is seen differs from a state.
    fn wrong(
        &self,
        seen: &Observation,
        state: usize,
        view: &View,
        allowed: &RangeInclusive<usize>,
    ) -> Result<Vec<String>> {
        let Some((bare, pages)) = &seen.apart else {
            return Ok(differences(&view.tree, &seen.tree));
        };
        let wrong = differences(&view.bare, bare);
        if !wrong.is_empty() {
            return Ok(wrong);
        }
        let mut wrong = Vec::new();
        for (path, facts) in &seen.tree {
            let expected = &view.tree[path];
            let indices: BTreeSet<u64> = facts
                .pages
                .keys()
                .chain(expected.pages.keys())
                .copied()
                .collect();
            for index in indices {
                if facts.pages.get(&index) == expected.pages.get(&index) {
                    continue;
                }
                let zeros = vec![0; (facts.size - index * PAGE).min(PAGE) as usize];
                let bytes = pages.get(&(path.clone(), index)).unwrap_or(&zeros);
                if let Err(why) = self.check_page(path, index, bytes, state, allowed) {
                    wrong.push(format!("{} page {index}: {why}", path.escape_ascii()));
                }
            }
        }
        Ok(wrong)
    }

    fn check_page(
        &self,
        path: &[u8],
        index: u64,
        bytes: &[u8],
        state: usize,
        allowed: &RangeInclusive<usize>,
    ) -> Result<()> {
        let id = self.states[state]
            .id(path)
            .context("no such file in the model")?;
        if self.promise == DataPromise::Writeback {
            let all: Vec<_> = allowed
                .clone()
                .filter_map(|s| self.states[s].page_of(id, index))
                .collect();
            ensure!(
                all.windows(2).any(|w| w[0] != w[1]),
                "changed although nobody wrote it"
            );
            return Ok(());
        }
        let zeros = [0; PAGE as usize];
        let versions: Vec<&[u8]> = (state..=*allowed.end())
            .filter_map(|s| self.states[s].page_of(id, index))
            .map(|page| page.unwrap_or(&zeros))
            .collect();
        for (at, sector) in bytes.chunks(SECTOR).enumerate() {
            let range = at * SECTOR..at * SECTOR + sector.len();
            let is_known = versions.iter().any(|v| v[range.clone()] == *sector);
            ensure!(
                is_known,
                "sector {at} holds none of {} versions",
                versions.len()
            );
        }
        Ok(())
    }
}

fn without_data(tree: &Tree) -> Tree {
    let bare = |facts: &Facts| Facts {
        pages: Default::default(),
        ..facts.clone()
    };
    tree.iter()
        .map(|(path, facts)| (path.clone(), bare(facts)))
        .collect()
}
