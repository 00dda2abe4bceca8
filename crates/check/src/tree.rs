//! The tree: every directory can be reached from the root and knows its parent, and every inode has
//! as many names as its link count says.

use stetfs_format::inode::ROOT_INO;
use stetfs_format::width::{must_fit, u32_as_usize};
use stetfs_format::{GroupNo, InodeNo, Place};

use crate::finding::Fault;
use crate::state::{Check, Record, Way};

/// Most links that a directory counts (`EXT4_LINK_MAX`); beyond them its count is 1, with
/// `dir_nlink`.
const MAX_LINKS: u32 = 65_000;

impl Check<'_> {
    pub(crate) fn check_tree(&mut self) {
        let Some(root) = self.dir_index(ROOT_INO) else {
            // The root is not in use, or was reported as not a directory.
            self.push(Place::Inode(ROOT_INO), Fault::RootMissing);
            return;
        };
        self.s.dirs[root].parent = ROOT_INO;
        self.check_connections(root);
        self.check_parents();
        self.check_links();
    }

    /// Follows the parents of each directory up to one whose way is known.
    fn check_connections(&mut self, root: usize) {
        let mut ways = std::mem::take(&mut self.s.ways);
        ways.clear();
        ways.resize(self.s.dirs.len(), Way::Unknown);
        ways[root] = Way::Known;
        for start in 0..self.s.dirs.len() {
            let mut at = start;
            while ways[at] == Way::Unknown {
                ways[at] = Way::OnIt;
                let dir = self.s.dirs[at];
                let parent = self.dir_index(dir.parent);
                let leads_on = parent.filter(|&parent| ways[parent] != Way::OnIt);
                let Some(parent) = leads_on else {
                    self.push(Place::Inode(dir.ino), Fault::Unconnected);
                    break;
                };
                at = parent;
            }
            let mut at = start;
            while ways[at] == Way::OnIt {
                ways[at] = Way::Known;
                let parent = self.s.dirs[at].parent;
                at = self.dir_index(parent).unwrap_or(at);
            }
        }
        self.s.ways = ways;
    }

    fn check_parents(&mut self) {
        for at in 0..self.s.dirs.len() {
            let dir = self.s.dirs[at];
            if dir.dotdot != dir.parent && dir.parent.0 != 0 {
                let (found, parent) = (dir.dotdot, dir.parent);
                self.push(Place::Inode(dir.ino), Fault::DotDot { found, parent });
            }
        }
    }

    fn check_links(&mut self) {
        for g in (0..self.g.groups_count).map(GroupNo) {
            let at = u32_as_usize(g.0);
            let range = u32_as_usize(self.s.bases[at])..u32_as_usize(self.s.bases[at + 1]);
            for (index, i) in range.enumerate() {
                let record = self.s.records[i];
                let right = u32::from(record.links) == record.counted && record.counted != 0;
                if !right && record.is_used() && record.kind != Record::RESERVED {
                    self.check_link(self.g.inode_at(g, must_fit(index)), record);
                }
            }
        }
    }

    fn check_link(&mut self, ino: InodeNo, record: Record) {
        let place = Place::Inode(ino);
        let Record { links, counted, .. } = record;
        if counted == 0 {
            self.push(place, Fault::Unattached);
            return;
        }
        let is_dir = record.kind == Record::DIRECTORY;
        let is_uncounted = is_dir && links == 1;
        if is_dir && counted > MAX_LINKS {
            if !self.g.dir_nlink {
                self.push(place, Fault::DirNlink(counted));
            }
            if is_uncounted {
                return;
            }
        } else if is_uncounted && record.indexed {
            // The directory once had too many links; the kernel does not count them again.
            return;
        }
        self.push(
            place,
            Fault::LinkCount {
                stored: links,
                counted,
            },
        );
    }
}
