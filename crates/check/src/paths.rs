//! Paths for the inodes in findings. Only if there are findings, the directories are read twice
//! more: once for the inodes themselves, once for the directories above them.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};

use stetfs_format::InodeNo;
use stetfs_format::inode::ROOT_INO;

use crate::directories::parse;
use crate::finding::{Finding, Name};
use crate::state::Check;

/// Longer paths are not shown (the kernel's `PATH_MAX`).
const MOST_BYTES: usize = 4096;

/// The directory that names an inode, and the name there.
type Names = BTreeMap<InodeNo, (InodeNo, Box<[u8]>)>;

impl Check<'_> {
    pub(crate) fn name_findings(&mut self) {
        let findings = self.found.findings();
        let wanted: BTreeSet<InodeNo> = findings.iter().filter_map(Finding::inode).collect();
        if wanted.is_empty() {
            return;
        }
        let mut names = Names::new();
        self.look_for(&wanted, &mut names);
        let above = self.directories_above(&names);
        self.look_for(&above, &mut names);
        for finding in self.found.findings() {
            let path = finding.inode().and_then(|ino| path_of(ino, &names));
            finding.path = path.map(|path| Name(path.into()));
        }
    }

    /// The directories between these and the root whose names are not known yet.
    fn directories_above(&self, names: &Names) -> BTreeSet<InodeNo> {
        let mut above = BTreeSet::new();
        for (parent, _) in names.values() {
            let mut at = *parent;
            while !names.contains_key(&at) && above.insert(at) {
                let Some(dir) = self.dir_index(at) else { break };
                at = self.s.dirs[dir].parent;
            }
        }
        above
    }

    /// Reads all directories; the check has already reported the unreadable ones.
    fn look_for(&mut self, wanted: &BTreeSet<InodeNo>, names: &mut Names) {
        let mut raw = std::mem::take(&mut self.s.block);
        for (at, dir) in self.s.dirs.iter().enumerate() {
            let next = self.s.dirs.get(at + 1);
            let end = next.map_or(self.s.runs.len(), |next| next.first_run);
            for run in &self.s.runs[dir.first_run..end] {
                for block in (0..u64::from(run.len)).map(|i| run.pblk.plus(i)) {
                    if self
                        .source
                        .read(self.g.block.start_of(block), &mut raw)
                        .is_ok()
                    {
                        look_into(&raw, dir.ino, wanted, names);
                    }
                }
            }
        }
        self.s.block = raw;
    }
}

fn look_into(raw: &[u8], dir: InodeNo, wanted: &BTreeSet<InodeNo>, names: &mut Names) {
    let mut offset = 0;
    while offset < raw.len()
        && let Ok(entry) = parse(raw, offset)
    {
        let is_dot = entry.name == b"." || entry.name == b"..";
        if !is_dot
            && wanted.contains(&entry.ino)
            && let Entry::Vacant(place) = names.entry(entry.ino)
        {
            place.insert((dir, entry.name.into()));
        }
        offset += entry.rec_len;
    }
}

/// Returns a path; `None` if the way to the root is unknown or endless.
fn path_of(ino: InodeNo, names: &Names) -> Option<Vec<u8>> {
    let mut parts = Vec::new();
    let mut len = 0;
    let mut at = ino;
    while at != ROOT_INO {
        let (parent, name) = names.get(&at)?;
        len += name.len() + 1;
        if len > MOST_BYTES {
            return None;
        }
        parts.push(name);
        at = *parent;
    }
    if parts.is_empty() {
        return Some(b"/".to_vec());
    }
    let mut path = Vec::with_capacity(len);
    for name in parts.into_iter().rev() {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    Some(path)
}
