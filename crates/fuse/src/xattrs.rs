//! Requests about extended attributes, and the reserved names of [`crate::control`].

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;
use stetfs::{Caller, Change, SetXattr, Shutdown};
use stetfs_format::InodeNo;

use crate::backend::Backend;
use crate::control::{self, Command};
use crate::errno::{Outcome, errno};
use crate::server::FsServer;
use crate::wire::abi::InHeader;

/// Setting this attribute may clear set-group-ID, which depends on the caller's groups.
const ACL_ACCESS: &str = "system.posix_acl_access";

impl<B: Backend> FsServer<B> {
    pub(crate) fn get_attribute(
        &self,
        from: &InHeader,
        ino: InodeNo,
        name: &OsStr,
    ) -> Outcome<Vec<u8>> {
        if name == control::STATS {
            // The counters tell what others do.
            self.administrator(from)?;
            return self.stats_json().map(String::into_bytes);
        }
        if name == control::WRITERS {
            self.administrator(from)?;
            return serde_json::to_vec(&self.writers.told()).map_err(|_| Errno::IO);
        }
        if name == control::ATOMIC {
            let max = if self.fs.is_atomic(ino) {
                self.marked_write_max()
            } else {
                0
            };
            return Ok(max.to_string().into_bytes());
        }
        self.fs
            .getxattr(&self.caller(from), ino, name.as_bytes())
            .map_err(|e| errno(&e))
    }

    pub(crate) fn set_attribute(
        &self,
        from: &InHeader,
        ino: InodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
    ) -> Outcome<()> {
        if name == control::CONTROL {
            return self.obey(from, value);
        }
        let how = match flags & (libc::XATTR_CREATE | libc::XATTR_REPLACE) {
            0 => SetXattr::Any,
            libc::XATTR_CREATE => SetXattr::Create,
            libc::XATTR_REPLACE => SetXattr::Replace,
            _ => return Err(Errno::INVAL),
        };
        let c = if name == ACL_ACCESS {
            self.caller_with_groups(from)
        } else {
            self.caller(from)
        };
        let change = Change::SetXattr(ino, name.as_bytes(), value, how);
        self.fs.change(&c, &change).map(drop).map_err(|e| errno(&e))
    }

    /// Returns the names, each ended by a NUL.
    pub(crate) fn list_attributes(&self, c: &Caller, ino: InodeNo) -> Outcome<Vec<u8>> {
        self.fs.listxattr(c, ino).map_err(|e| errno(&e))
    }

    pub(crate) fn remove_attribute(&self, c: &Caller, ino: InodeNo, name: &OsStr) -> Outcome<()> {
        let change = Change::RemoveXattr(ino, name.as_bytes());
        self.fs.change(c, &change).map(drop).map_err(|e| errno(&e))
    }

    /// Returns the caller as an administrator of the volume. Fails unless it is root or the user
    /// who runs the server.
    pub(crate) fn administrator(&self, from: &InHeader) -> Outcome<Caller> {
        if from.uid != 0 && from.uid != self.owner {
            return Err(Errno::PERM);
        }
        Ok(Caller {
            privileged: true,
            ..self.caller(from)
        })
    }

    fn obey(&self, from: &InHeader, words: &[u8]) -> Outcome<()> {
        let c = self.administrator(from)?;
        match Command::decode(words).ok_or(Errno::INVAL)? {
            Command::Commit => self.fs.sync().map_err(|e| errno(&e)),
            Command::Drain => self.fs.drain_some().map(drop).map_err(|e| errno(&e)),
            Command::Shutdown(mode) => self.shut_down(&c, mode, from.pid),
        }
    }

    /// Stops the volume on request of process `pid`.
    pub(crate) fn shut_down(&self, c: &Caller, mode: Shutdown, pid: u32) -> Outcome<()> {
        tracing::warn!("shut down on request of process {pid} ({mode:?})");
        self.fs.shutdown(c, mode).map_err(|e| errno(&e))
    }
}
