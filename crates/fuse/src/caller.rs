//! Who makes a request, in the core's terms.
//!
//! The kernel has checked permissions already (`default_permissions`), or nobody does (`fakeroot`).
//! So a caller needs only its user, its group and its file creation mask, which come with the
//! request. Supplementary groups are looked up in `/proc` for the few requests that need them.

use smallvec::SmallVec;
use stetfs::Caller;
use stetfs_format::width::low16;

use crate::backend::Backend;
use crate::server::FsServer;
use crate::status::Status;
use crate::wire::abi::InHeader;

impl<B: Backend> FsServer<B> {
    /// Returns the caller of a request that creates no file.
    pub(crate) fn caller(&self, from: &InHeader) -> Caller {
        Caller {
            uid: from.uid,
            gid: from.gid,
            groups: SmallVec::new(),
            umask: 0,
            privileged: from.uid == 0 || self.options.fakeroot,
            checks: false,
        }
    }

    /// Returns the caller of a request that creates a file.
    pub(crate) fn creator(&self, from: &InHeader, umask: u32) -> Caller {
        Caller {
            umask: low16(umask & 0o777),
            ..self.caller(from)
        }
    }

    /// Returns the caller with its supplementary groups; without them if the process cannot be
    /// seen from here.
    pub(crate) fn caller_with_groups(&self, from: &InHeader) -> Caller {
        let mut caller = self.caller(from);
        if from.pid != 0
            && let Some(status) = Status::of(from.pid)
        {
            caller.groups = groups(&status);
        }
        caller
    }
}

fn groups(status: &Status) -> SmallVec<[u32; 8]> {
    let numbers = status.field("Groups").unwrap_or_default();
    numbers
        .split_whitespace()
        .filter_map(|gid| gid.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::groups;

    #[test]
    fn groups_of_a_status_file() {
        let status = "Name:\tx\nGid:\t7\t7\t7\t7\nGroups:\t4 24 1000 \nNgid:\t0\n";
        assert_eq!(groups(&status.into()).as_slice(), [4, 24, 1000]);
        assert!(groups(&"Name:\tx\n".into()).is_empty());
    }
}
