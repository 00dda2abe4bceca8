//! Groups of changes. A commit applies the staged changes to the files as they are then, names and
//! attributes first. Two groups may be open; operations mean one of them.
//!
//! The group sees a copy of the model to which everything staged was applied. An operation in the
//! group runs on this copy by the ordinary rules; the names and links that it changes there are
//! staged. New files are in the model at once, but without a name, and so is the data written to
//! them.

use std::collections::{BTreeMap, BTreeSet};

use rustix::io::Errno;

use super::{Body, Id, Model, Node, Vouched};
use crate::world::op::{Op, Payload, RenameHow};
use crate::world::{Outcome, Reply, World};

/// The staged changes, and what they rest on. Files in it survive the loss of their last name.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    steps: Vec<Step>,
    contents: BTreeMap<Id, Content>,
    made: BTreeSet<Id>,
    /// All files that the steps concern.
    kept: BTreeSet<Id>,
    /// The former owners of the names that it changes.
    names: BTreeMap<(Id, String), Option<Id>>,
    /// The former link counts of the files whose link count it changes.
    links: BTreeMap<Id, u64>,
    /// The former parent of each directory that it moves, and of each directory above the new
    /// places.
    ways: BTreeMap<Id, Id>,
    /// Directories that it removes.
    removed: BTreeSet<Id>,
}

#[derive(Clone, Debug)]
enum Step {
    Names {
        /// Directory, name, and what the name means from now on.
        changes: Vec<(Id, String, Option<Id>)>,
        /// Files and the change of their link counts.
        links: Vec<(Id, i64)>,
        removed: Vec<Id>,
    },
    Mode(Id, u16),
    Owner(Id, Option<u32>, Option<u32>),
}

/// The staged content of a file: the size to truncate it to, the writes after that, and its least
/// length.
#[derive(Clone, Debug, Default)]
struct Content {
    cut: Option<u64>,
    writes: Vec<(u64, Vec<u8>)>,
    least: Option<u64>,
    /// [`Node::group_commits`] when the first content was staged.
    seen: usize,
}

impl Content {
    fn resize(&mut self, size: u64, outside: u64) {
        let kept = self.cut.unwrap_or(u64::MAX).min(outside);
        self.writes.retain(|(at, _)| *at < size);
        for (at, bytes) in &mut self.writes {
            bytes.truncate((size - *at) as usize);
        }
        if size < kept {
            (self.cut, self.least) = (Some(size), None)
        } else {
            self.least = Some(size);
        }
    }
}

impl Group {
    pub(super) fn has(&self, id: Id) -> bool {
        self.kept.contains(&id)
    }

    fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.contents.is_empty()
    }
}

fn names_of(model: &Model, id: Id) -> Option<&BTreeMap<String, Id>> {
    match &model.nodes.get(&id)?.body {
        Body::Dir { names, .. } => Some(names),
        _ => None,
    }
}

/// Returns the names that differ between the two.
fn changed_names(before: &Model, after: &Model) -> Vec<(Id, String, Option<Id>)> {
    let nothing = BTreeMap::new();
    let mut changes = Vec::new();
    for dir in after.nodes.keys() {
        let Some(now) = names_of(after, *dir) else {
            continue;
        };
        let old = names_of(before, *dir).unwrap_or(&nothing);
        let all: BTreeSet<_> = old.keys().chain(now.keys()).collect();
        let changed = all
            .into_iter()
            .filter(|name| old.get(*name) != now.get(*name));
        changes.extend(changed.map(|name| (*dir, name.clone(), now.get(name).copied())));
    }
    changes
}

/// Returns the files whose number of names differs, with the difference.
fn changed_links(before: &Model, after: &Model) -> Vec<(Id, i64)> {
    let links = |model: &Model, id| {
        model
            .nodes
            .get(&id)
            .map_or(0, |node: &Node| node.nlink as i64)
    };
    let all: BTreeSet<_> = before.nodes.keys().chain(after.nodes.keys()).collect();
    let files = all
        .into_iter()
        .filter(|id| names_of(before, **id).is_none());
    let files = files.filter(|id| names_of(after, **id).is_none());
    let more = files.map(|id| (*id, links(after, *id) - links(before, *id)));
    more.filter(|(_, more)| *more != 0).collect()
}

impl Model {
    /// Whether a group is open.
    pub fn has_group(&self) -> bool {
        self.groups().next().is_some()
    }

    /// The open groups.
    pub(super) fn groups(&self) -> impl Iterator<Item = &Group> {
        self.group.iter().chain(&self.other)
    }

    /// Ends a group whose commit was refused. The directories that a refused operation on a group
    /// concerns must still stay.
    pub(super) fn refuse_in_group(&mut self, op: &Op) -> Result<(), Errno> {
        if let Op::GroupDo(op) = op {
            let mut done = self.clone();
            let _ = done.group_do(op);
            let done = done.group.unwrap_or_default();
            let is_known = |id: &Id| self.nodes.contains_key(id);
            let kept: Vec<_> = done.kept.into_iter().filter(is_known).collect();
            let ways: Vec<_> = done
                .ways
                .into_iter()
                .filter(|(id, _)| is_known(id))
                .collect();
            let group = self.group()?;
            group.kept.extend(kept);
            group.ways.extend(ways);
        }
        if matches!(op, Op::GroupCommit { .. }) {
            self.drop_group();
        }
        Ok(())
    }

    fn group(&mut self) -> Result<&mut Group, Errno> {
        self.group.as_mut().ok_or(Errno::BADF)
    }

    /// Returns the model as the group sees it.
    fn view(&self) -> Self {
        let mut view = self.clone();
        view.apply_group(&self.group.clone().unwrap_or_default());
        view
    }

    pub(super) fn begin_group(&mut self) -> Outcome {
        self.drop_group();
        self.group = Some(Group::default());
        Ok(Reply::Done)
    }

    pub(super) fn switch_groups(&mut self) -> Outcome {
        std::mem::swap(&mut self.group, &mut self.other);
        Ok(Reply::Done)
    }

    pub(super) fn stage(&mut self, slot: u8, offset: u64, payload: Payload) -> Outcome {
        let (id, groups) = (self.slot(slot)?, self.rules.groups);
        let group = self.group()?;
        let bytes = payload.bytes();
        if group.made.contains(&id) {
            return self.write(slot, Some(offset), payload).map(|_| Reply::Done);
        }
        if !groups {
            return Err(Errno::OPNOTSUPP);
        }
        if !bytes.is_empty() {
            self.content_in_group(id)?.writes.push((offset, bytes));
        }
        Ok(Reply::Done)
    }

    /// Returns the staged content of a file that the group has not made.
    fn content_in_group(&mut self, id: Id) -> Result<&mut Content, Errno> {
        let seen = self.node(id).group_commits;
        let group = self.group()?;
        group.kept.insert(id);
        let first = Content {
            seen,
            ..Content::default()
        };
        Ok(group.contents.entry(id).or_insert(first))
    }

    pub(super) fn read_staged(&mut self, slot: u8, offset: u64, len: usize) -> Outcome {
        let id = self.slot(slot)?;
        self.group()?;
        Ok(Reply::Bytes(self.view().content(id).read(offset, len)))
    }

    pub(super) fn group_do(&mut self, op: &Op) -> Outcome {
        self.group()?;
        let before = self.view();
        let mut after = before.clone();
        // The operation is one step for both models.
        after.step -= 1;
        match op {
            op if !op.fits_group() => return Err(Errno::OPNOTSUPP),
            Op::Rename {
                old,
                new,
                how: RenameHow::Whiteout,
            } => {
                before.place(old)?;
                before.place(new)?;
                return Err(Errno::OPNOTSUPP);
            }
            Op::Open { slot, .. } => {
                self.close(*slot);
                after.apply(op)?;
                self.slots[usize::from(*slot)] = after.slots[usize::from(*slot)];
                return Ok(Reply::Done);
            }
            _ => {}
        }
        let reply = after.apply(op)?;
        match op {
            Op::Truncate { path, size } => self.stage_size(before.followed(path)?, *size)?,
            Op::Chmod { path, mode } => {
                self.stage_attribute(before.followed(path)?, |id| Step::Mode(id, *mode))?;
            }
            Op::Chown { path, uid, gid } => {
                self.stage_attribute(before.at(path)?, |id| Step::Owner(id, *uid, *gid))?;
            }
            Op::Rename { .. } => {
                self.stage_names(&before, &after)?;
                self.note_ways(&before, &after)?;
            }
            _ => self.stage_names(&before, &after)?,
        }
        Ok(reply)
    }

    fn stage_size(&mut self, id: Id, size: u64) -> Result<(), Errno> {
        if self.group()?.made.contains(&id) {
            self.resize(id, size);
            return Ok(());
        }
        let outside = self.content(id).size();
        self.content_in_group(id)?.resize(size, outside);
        Ok(())
    }

    fn stage_attribute(&mut self, id: Id, step: impl FnOnce(Id) -> Step) -> Result<(), Errno> {
        let group = self.group()?;
        if group.made.contains(&id) {
            self.apply_step(&step(id));
            return Ok(());
        }
        group.kept.insert(id);
        group.steps.push(step(id));
        Ok(())
    }

    fn stage_names(&mut self, before: &Self, after: &Self) -> Result<(), Errno> {
        for (id, node) in after
            .nodes
            .iter()
            .filter(|(id, _)| !before.nodes.contains_key(id))
        {
            let mut node = node.clone();
            if !matches!(node.body, Body::Dir { .. }) {
                node.nlink = 0;
            }
            self.nodes.insert(*id, node);
            self.group()?.made.insert(*id);
        }
        self.next = after.next;
        let (changes, links) = (changed_names(before, after), changed_links(before, after));
        let is_there = |id: &Id| after.nodes.get(id).is_some_and(|node| node.nlink > 0);
        let had = before.nodes.iter().filter(|(_, node)| node.nlink > 0);
        let dirs = had.filter(|(id, _)| names_of(before, **id).is_some());
        let removed: Vec<_> = dirs.map(|(id, _)| *id).filter(|id| !is_there(id)).collect();
        let group = self.group()?;
        for (dir, name, now) in &changes {
            let base = names_of(before, *dir)
                .and_then(|names| names.get(name))
                .copied();
            group
                .kept
                .extend([Some(*dir), base, *now].into_iter().flatten());
            if !group.made.contains(dir) {
                group.names.entry((*dir, name.clone())).or_insert(base);
            }
        }
        for (id, _) in links.iter().filter(|(id, _)| !group.made.contains(id)) {
            group.links.entry(*id).or_insert(before.node(*id).nlink);
        }
        group.removed.extend(&removed);
        if !changes.is_empty() {
            group.steps.push(Step::Names {
                changes,
                links,
                removed,
            });
        }
        Ok(())
    }

    /// Notes the former parents of the directories that a rename has moved, and of all directories
    /// above their new places.
    fn note_ways(&mut self, before: &Self, after: &Self) -> Result<(), Errno> {
        let group = self.group()?;
        let dirs = after
            .nodes
            .keys()
            .filter(|id| names_of(after, **id).is_some());
        for dir in dirs.filter(|dir| before.parent(**dir) != after.parent(**dir)) {
            let mut at = *dir;
            while at != super::ROOT {
                if !group.made.contains(&at) {
                    group.ways.entry(at).or_insert(before.parent(at));
                }
                at = after.parent(at);
            }
        }
        Ok(())
    }

    fn apply_step(&mut self, step: &Step) {
        match step {
            Step::Mode(id, mode) => self.set_mode(*id, *mode),
            Step::Owner(id, uid, gid) => self.set_owner(*id, *uid, *gid),
            Step::Names {
                changes,
                links,
                removed,
            } => {
                for (dir, name, _) in changes {
                    self.remove(*dir, name);
                }
                for (dir, name, now) in changes {
                    if let Some(id) = now {
                        self.insert(*dir, name, *id);
                    }
                }
                for (id, more) in links {
                    let node = self.touch(*id);
                    node.nlink = node.nlink.saturating_add_signed(*more);
                }
                removed.iter().for_each(|id| self.drop_link(*id));
            }
        }
    }

    fn apply_group(&mut self, group: &Group) {
        group.steps.iter().for_each(|step| self.apply_step(step));
        for (id, content) in &group.contents {
            if let Some(cut) = content.cut {
                // If somebody else has truncated the file further, nothing is left to cut.
                self.resize(*id, cut.min(self.content(*id).size()));
            }
            for (offset, bytes) in &content.writes {
                self.write_to(*id, *offset, bytes);
            }
            if let Some(least) = content.least {
                if least > self.content(*id).size() {
                    self.resize(*id, least);
                } else {
                    self.modify(*id);
                }
            }
        }
    }

    /// Whether somebody has changed anything on which the group's steps rest.
    fn has_conflict(&self, group: &Group) -> bool {
        let names = |id: &Id| names_of(self, *id).into_iter().flatten();
        let is_other = |((dir, name), base): (&(Id, String), &Option<Id>)| {
            names_of(self, *dir).and_then(|names| names.get(name)) != base.as_ref()
        };
        let is_gone = |id: &&Id| names_of(self, **id).is_some() && self.node(**id).nlink == 0;
        let is_full = |dir: &Id| {
            let mut names = names(dir).map(|(name, _)| (*dir, name.clone()));
            names.any(|name| !group.names.contains_key(&name))
        };
        let is_written =
            |(id, content): (&Id, &Content)| self.node(*id).group_commits != content.seen;
        group.contents.iter().any(is_written)
            || group.names.iter().any(is_other)
            || group
                .links
                .iter()
                .any(|(id, links)| self.node(*id).nlink != *links)
            || group
                .ways
                .iter()
                .any(|(id, parent)| self.parent(*id) != *parent)
            || group.removed.difference(&group.made).any(is_full)
            || group.kept.difference(&group.made).any(|id| is_gone(&id))
    }

    pub(super) fn commit_group(&mut self, lazy: bool) -> Outcome {
        let group = self.group()?.clone();
        if self.has_conflict(&group) {
            self.drop_group();
            return Err(Errno::BUSY);
        }
        self.apply_group(&group);
        for id in group.contents.keys() {
            if let Some(node) = self.nodes.get_mut(id) {
                node.group_commits += 1;
            }
        }
        // A file gets places for its data before it gets a name.
        let step = self.step;
        for id in &group.made {
            if let Some(node) = self.nodes.get_mut(id) {
                node.placed = step;
            }
        }
        if !lazy && !group.is_empty() {
            self.vouched = Vouched::all(self.step);
        }
        self.end_group();
        Ok(Reply::Done)
    }

    pub(super) fn abort_group(&mut self) -> Outcome {
        self.group()?;
        self.drop_group();
        Ok(Reply::Done)
    }

    pub(super) fn drop_group(&mut self) {
        for id in self.group.iter().flat_map(|group| &group.made) {
            if let Some(node) = self.nodes.get_mut(id) {
                node.nlink = 0;
            }
        }
        self.end_group();
    }

    /// Drops both groups.
    pub(super) fn drop_groups(&mut self) {
        self.drop_group();
        self.group = self.other.take();
        self.drop_group();
    }

    fn end_group(&mut self) {
        let group = self.group.take().unwrap_or_default();
        // A file that is truncated in the step that takes its last name stays in the model: where
        // data is no part of a transaction, a crash may leave the truncated file with its name.
        let gone = group
            .kept
            .iter()
            .filter(|id| !group.contents.contains_key(id));
        gone.for_each(|id| self.collect(*id));
    }
}
