//! `--chown` and `--owner-map`: other owners for copies.
//!
//! Owners are also in attributes: users and groups of an ACL, and the root of the user namespace in
//! which a program's capabilities count. `--owner-map` changes those too.

use std::str::FromStr;

use clap::Args;
use stetfs_format::acl::{Acl, AclEntry, Tag};

use crate::failure::{Failure, Result};

/// The attribute that holds a file's ACL.
pub(crate) const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute that holds the ACL that new files of a directory get.
pub(crate) const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";

/// Owners of copies, as the command line has them.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Owners {
    /// Give all copies to this owner and group, by numbers: UID:GID, UID or :GID
    #[arg(long, value_name = "UID:GID", conflicts_with = "owner_map")]
    pub(crate) chown: Option<Owner>,
    /// Move a range of owners and groups, as 100000:0:65536 for what a container without root has
    /// made; u:FROM:TO:COUNT moves owners only, g: groups only. May be repeated; numbers in no
    /// range stay
    #[arg(long, value_name = "FROM:TO:COUNT")]
    pub(crate) owner_map: Vec<Range>,
}

/// An owner, a group or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    uid: Option<u32>,
    gid: Option<u32>,
}

/// A range of numbers, and where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    of_users: bool,
    of_groups: bool,
    from: u32,
    to: u32,
    count: u32,
}

impl FromStr for Owner {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |_| "it is written UID:GID, UID or :GID, in numbers, such as 0:0".to_owned();
        let id = |text: &str| text.parse::<u32>().map_err(wrong);
        let (uid, gid) = match text.split_once(':') {
            None => (Some(id(text)?), None),
            Some(("", gid)) => (None, Some(id(gid)?)),
            Some((uid, gid)) => (Some(id(uid)?), Some(id(gid)?)),
        };
        Ok(Self { uid, gid })
    }
}

impl FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "it is written FROM:TO:COUNT, in numbers, such as 100000:0:65536".to_owned();
        let (of_users, of_groups, numbers) = match text.split_once(':') {
            Some(("u", rest)) => (true, false, rest),
            Some(("g", rest)) => (false, true, rest),
            _ => (true, true, text),
        };
        let numbers: Result<Vec<u32>, _> = numbers.split(':').map(str::parse).collect();
        let [from, to, count] = *numbers.map_err(|_| wrong())? else {
            return Err(wrong());
        };
        // The last number names nobody (chown(2) takes it for "as it is").
        let is_within = |first: u32| first.checked_add(count).is_some();
        if count == 0 || !is_within(from) || !is_within(to) {
            return Err("the range has no number, or ends beyond the last one".to_owned());
        }
        Ok(Self {
            of_users,
            of_groups,
            from,
            to,
            count,
        })
    }
}

impl Range {
    fn of(&self, id: u32) -> Option<u32> {
        let n = id.checked_sub(self.from).filter(|n| *n < self.count)?;
        Some(self.to + n)
    }
}

impl Owners {
    /// True if every owner stays.
    pub(crate) fn is_none(&self) -> bool {
        self.chown.is_none() && self.owner_map.is_empty()
    }

    /// Fails if the owners to be changed are not those that copies get.
    pub(crate) fn check(&self, keeps_owners: bool) -> Result<()> {
        if keeps_owners || self.owner_map.is_empty() {
            return Ok(());
        }
        Err(
            Failure::new("--owner-map is of no use where owners are not kept")
                .advise("keep them with --archive")
                .exit(2),
        )
    }

    /// Returns the owner and the group of the copy of a file with these.
    pub(crate) fn of(&self, uid: u32, gid: u32) -> (u32, u32) {
        let chown = self
            .chown
            .map_or((None, None), |owner| (owner.uid, owner.gid));
        (
            chown.0.unwrap_or_else(|| self.user(uid)),
            chown.1.unwrap_or_else(|| self.group(gid)),
        )
    }

    fn user(&self, id: u32) -> u32 {
        self.moved(id, |range| range.of_users)
    }

    fn group(&self, id: u32) -> u32 {
        self.moved(id, |range| range.of_groups)
    }

    /// The first range that has the number counts.
    fn moved(&self, id: u32, counts: impl Fn(&Range) -> bool) -> u32 {
        let ranges = self.owner_map.iter().filter(|range| counts(range));
        ranges.filter_map(|range| range.of(id)).next().unwrap_or(id)
    }

    /// Moves the owners in an extended attribute.
    pub(crate) fn adapt(&self, name: &[u8], value: &mut Vec<u8>) {
        if self.owner_map.is_empty() {
            return;
        }
        match name {
            ACL_ACCESS | ACL_DEFAULT => self.adapt_acl(value),
            b"security.capability" => self.adapt_capability(value),
            _ => {}
        }
    }

    /// Leaves what is no ACL as it is.
    fn adapt_acl(&self, value: &mut Vec<u8>) {
        let Ok(Some(acl)) = Acl::decode_xattr(value) else {
            return;
        };
        let moved = acl.entries().iter().map(|entry| AclEntry {
            tag: match entry.tag {
                Tag::User(id) => Tag::User(self.user(id)),
                Tag::Group(id) => Tag::Group(self.group(id)),
                other => other,
            },
            ..*entry
        });
        if let Ok(acl) = Acl::new(moved) {
            *value = acl.encode_xattr();
        }
    }

    /// Source: linux/capability.h: revision 3 is revision 2 with the namespace's root behind it.
    /// That of the machine has none.
    fn adapt_capability(&self, value: &mut Vec<u8>) {
        const REVISION_2: u8 = 2;
        const REVISION_3: u8 = 3;
        /// Bytes of revision 2.
        const LEN: usize = 20;
        let Some((front, root)) = value.split_at_mut_checked(LEN) else {
            return;
        };
        let (REVISION_3, Ok(root)) = (front[3], <&mut [u8; 4]>::try_from(root)) else {
            return;
        };
        let new = self.user(u32::from_le_bytes(*root));
        *root = new.to_le_bytes();
        if new == 0 {
            front[3] = REVISION_2;
            value.truncate(LEN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(ranges: &[&str]) -> Owners {
        Owners {
            chown: None,
            owner_map: ranges.iter().map(|range| range.parse().unwrap()).collect(),
        }
    }

    #[test]
    fn owners_are_read_and_given() {
        let given = |text: &str| Owners {
            chown: Some(text.parse().unwrap()),
            ..Owners::default()
        };
        assert_eq!(given("1:2").of(7, 8), (1, 2));
        assert_eq!(given("1").of(7, 8), (1, 8));
        assert_eq!(given(":2").of(7, 8), (7, 2));
        for wrong in ["", ":", "1:", "root", "-1", "1:2:3", "4294967296"] {
            assert!(wrong.parse::<Owner>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn ranges_are_moved() {
        let owners = map(&["100000:0:65536", "u:1000:5:1", "g:1000:6:1"]);
        assert_eq!(owners.of(100_000, 165_535), (0, 65_535));
        assert_eq!(owners.of(165_536, 99_999), (165_536, 99_999));
        assert_eq!(owners.of(1000, 1000), (5, 6));
        for wrong in [
            "",
            "1:2",
            "1:2:0",
            "1:2:x",
            "x:1:2:3",
            "4294967295:0:1",
            "0:4294967290:6",
        ] {
            assert!(wrong.parse::<Range>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn owners_in_attributes_are_moved() {
        let owners = map(&["100000:0:65536"]);
        let acl = |ids: [u32; 3]| {
            let mut value = vec![2, 0, 0, 0];
            let ids = ids.map(u32::to_le_bytes);
            let none = [0xff; 4];
            for (tag, id) in [
                (0x01, none),
                (0x02, ids[0]),
                (0x02, ids[1]),
                (0x04, none),
                (0x08, ids[2]),
                (0x10, none),
                (0x20, none),
            ] {
                value.extend([tag, 0, 7, 0]);
                value.extend(id);
            }
            value
        };
        let mut value = acl([100_005, 7, 100_006]);
        owners.adapt(ACL_ACCESS, &mut value);
        assert_eq!(value, acl([5, 7, 6]));

        let caps = |revision: u8| [vec![1, 0, 0, revision], vec![9; 16]].concat();
        for (root, expected) in [
            (100_000_u32, caps(2)),
            (100_001, [caps(3), vec![1, 0, 0, 0]].concat()),
        ] {
            let mut value = [caps(3), root.to_le_bytes().to_vec()].concat();
            owners.adapt(b"security.capability", &mut value);
            assert_eq!(value, expected);
        }
        // What is not as it should be stays.
        for broken in [vec![], vec![2, 0], caps(3), vec![3; 25]] {
            for name in [&b"security.capability"[..], ACL_DEFAULT] {
                let mut value = broken.clone();
                owners.adapt(name, &mut value);
                assert_eq!(value, broken);
            }
        }
    }
}
